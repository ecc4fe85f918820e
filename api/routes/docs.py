"""The page of `GET /docs`: one file that shows the OpenAPI document and lets a reader try calls.

Plain bytes, read from beside this module when it is loaded. Must not know routes: the page asks for
the document like any client.
"""

import importlib.resources

PAGE_TYPE = "text/html; charset=utf-8"
PAGE = importlib.resources.files(__package__).joinpath("docs.html").read_bytes()
# Nothing from elsewhere is loaded, framed or sent to, whatever a model may have written.
PAGE_HEADERS = (
    (
        "content-security-policy",
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline';"
        " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("cache-control", "no-store"),
)
