// What the openai client for Node gets from a server, as one JSON object by scenario.
// Usage: NODE_PATH=…/node_modules node openai_client.cjs URL

const OpenAI = require("openai");

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none", maxRetries: 0, timeout: 60_000 });
const messages = [{ role: "user", content: "Say something." }];
const chat = { model: "tiny", messages, max_tokens: 16, temperature: 0, ignore_eos: true };
const look = {
  name: "look",
  description: "Looks.",
  parameters: {
    type: "object",
    properties: { near: { type: "boolean" } },
    required: ["near"],
    additionalProperties: false,
  },
};
const calling = {
  model: "tiny",
  messages,
  max_tokens: 200,
  temperature: 0,
  tools: [{ type: "function", function: look }],
  tool_choice: "required",
  parallel_tool_calls: false,
};
const response = { model: "tiny", input: "Say something.", max_output_tokens: 16, temperature: 0, ignore_eos: true };

const scenarios = {
  models: async () => (await client.models.list()).data.map((model) => model.id),

  chat: () => client.chat.completions.create(chat),

  async chunks() {
    const chunks = [];
    const options = { stream: true, stream_options: { include_usage: true } };
    for await (const chunk of await client.chat.completions.create({ ...chat, ...options })) chunks.push(chunk);
    return chunks;
  },

  call: () => client.chat.completions.create(calling),

  // The client joins the deltas itself, and runs no tool.
  streamedCall: () => client.chat.completions.stream(calling).finalChatCompletion(),

  response: () => client.responses.create(response),

  async events() {
    const events = [];
    for await (const event of await client.responses.create({ ...response, stream: true })) events.push(event);
    return events;
  },

  async stored() {
    const { id } = await client.responses.create(response);
    const found = await client.responses.retrieve(id);
    const items = await client.responses.inputItems.list(id);
    await client.responses.delete(id);
    const gone = await client.responses.retrieve(id).catch((error) => error);
    return { same: found.id === id, items: items.data, status: gone.status, code: gone.code };
  },

  // It asks for base64 by itself, and makes numbers of it.
  embeddings: () => client.embeddings.create({ model: "tiny", input: ["the of", "and"] }),

  async refusals() {
    const unknown = await client.chat.completions.create({ ...chat, model: "gpt-4" }).catch((error) => error);
    const bad = await client.chat.completions.create({ ...chat, n: 99 }).catch((error) => error);
    return [unknown, bad].map((error) => ({
      name: error.constructor.name, status: error.status, code: error.code, param: error.param,
    }));
  },

  // Hanging up in the middle is no error of anybody's.
  async aborted() {
    const stream = await client.chat.completions.create({ ...chat, max_tokens: 500, stream: true });
    let count = 0;
    for await (const _ of stream) if (++count === 3) break;
    return count;
  },
};

(async () => {
  const answers = {};
  for (const [name, run] of Object.entries(scenarios)) answers[name] = await run();
  process.stdout.write(JSON.stringify(answers));
})();
