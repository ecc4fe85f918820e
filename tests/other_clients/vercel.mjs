// Vercel's AI SDK over its three providers: text, a stream, and a second turn.
//
// node vercel.mjs URL

import { generateText, streamText } from "ai";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";

const baseURL = `${process.argv[2]}/v1`;
const openai = createOpenAI({ baseURL, apiKey: "none" });
const compatible = createOpenAICompatible({ name: "triolet", baseURL, includeUsage: true });
const models = {
  responses: openai.responses("triolet-bundled"),
  chat: openai.chat("triolet-bundled"),
  compatible: compatible("triolet-bundled"),
};
const user = { role: "user", content: "What is the capital of Japan?" };
for (const [name, model] of Object.entries(models)) {
  const asked = { model, temperature: 0, maxOutputTokens: 40, maxRetries: 0 };
  const whole = await generateText({ ...asked, messages: [user] });
  const stream = streamText({ ...asked, messages: [user] });
  let streamed = "";
  for await (const piece of stream.textStream) streamed += piece;
  if (!streamed || streamed !== whole.text) throw new Error(`${name}: ${whole.text} ${streamed}`);
  if (!((await stream.usage).outputTokens > 1)) throw new Error(`${name}: no usage`);
  // Over Responses the first turn's answer is sent as an item reference.
  const messages = [user, ...whole.response.messages, { role: "user", content: "And of France?" }];
  const second = await generateText({ ...asked, messages });
  if (!second.text) throw new Error(`${name}: the second turn has no text`);
  process.stdout.write(`${name}: ${streamed}  `);
}
