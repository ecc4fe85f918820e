// The unmodified npm SDK: lanes of one WebSocket at once, then each request alone over HTTP.
//
// node lanes.cjs URL LANES TOKENS; prints what came, as JSON. NODE_PATH says where the SDK is.

const { OpenAI } = require('openai');
const { ResponsesWS } = require('openai/resources/responses/ws');

const [url, lanes, tokens] = [process.argv[2], Number(process.argv[3]), Number(process.argv[4])];
const TERMINAL = ['response.completed', 'response.incomplete', 'response.failed', 'error'];
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0 });

const request = (number) => ({
  model: 'triolet-bundled',
  input: `Tell me a story about a fox and the number ${number}.`,
  max_output_tokens: tokens,
  temperature: number % 2,
  runtime: { seed: number, ignore_eos: true },
});

function together() {
  const seen = Array.from({ length: lanes }, () => ({ text: '', numbers: [], end: null }));
  const socket = new ResponsesWS(client);
  return new Promise((resolve, reject) => {
    socket.on('error', reject);
    socket.on('event', (event) => {
      const lane = seen[Number(event.stream_id)];
      lane.numbers.push(event.sequence_number);
      if (event.type === 'response.output_text.delta') lane.text += event.delta;
      if (TERMINAL.includes(event.type)) lane.end = event.type;
      if (seen.every((one) => one.end)) {
        socket.close();
        resolve(seen);
      }
    });
    for (let number = 0; number < lanes; number++) {
      socket.send({ type: 'response.create', stream_id: String(number), ...request(number) });
    }
  });
}

async function main() {
  const seen = await together();
  const alone = [];
  for (let number = 0; number < lanes; number++) {
    alone.push((await client.responses.create(request(number))).output_text);
  }
  process.stdout.write(JSON.stringify({ lanes: seen, alone }));
}

main();
