#!/usr/bin/env node
// Driver of @google-cloud/pubsub: any call by its name in the service, the publisher and the subscriber.

const path = require("node:path");
const { PubSub, v1 } = require("@google-cloud/pubsub");
const { version } = require("@google-cloud/pubsub/package.json");
const protobuf = require("protobufjs");
const json = require("proto3-json-serializer");
const { grpc, Status } = require("google-gax");
const driver = require("../../suite/driver.js");

const LIMIT_MS = 50_000;
// Request types of calls. The type of all other calls is their name with `Request`.
const REQUESTS = { CreateTopic: "Topic", CreateSubscription: "Subscription" };

const pubsub = new PubSub();
const [servicePath, port] = process.env.PUBSUB_EMULATOR_HOST.split(":");
const where = { servicePath, port: Number(port), sslCreds: grpc.credentials.createInsecure() };
const owners = [new v1.PublisherClient(where), new v1.SubscriberClient(where), new v1.SchemaServiceClient(where)];
const root = protobuf.Root.fromJSON(
  require(path.join(path.dirname(require.resolve("@google-cloud/pubsub/package.json")), "build/protos/protos.json")),
);
const publishers = new Map();
const streams = [];

// Adds Google's names of a status, and of the result of a failed acknowledgement.
function named(error) {
  error.names = [Status[error.code], error.errorCode].filter((name) => typeof name === "string");
  return error;
}

async function unary(name, values) {
  const method = name[0].toLowerCase() + name.slice(1);
  const isPolicy = name.endsWith("IamPolicy") || name.endsWith("IamPermissions");
  const owner = isPolicy ? owners[values.resource.includes("/topics/") ? 0 : 1] : owners.find((owner) => owner[method]);
  if (!owner) throw new driver.Missing(`the library has no ${name}`);
  const options = { timeout: LIMIT_MS };
  if (isPolicy) return (await owner[method](values, options))[0];
  const type = root.lookupType(`google.pubsub.v1.${REQUESTS[name] ?? `${name}Request`}`);
  // A mask in JSON has names in camel case, which the library's parser does not convert.
  const mask = values.updateMask?.replace(/[A-Z]/g, (c) => `_${c.toLowerCase()}`);
  // The library requires messages as plain objects.
  const message = json.fromProto3JSON(type, mask ? { ...values, updateMask: mask } : values);
  const [done] = await owner[method](type.toObject(message, { enums: Number }), options);
  if (!Array.isArray(done)) return plain(name, done, false);
  return { items: done.map((each) => (typeof each === "string" ? each : plain(name, each, true))) };
}

// Returns the type of a call's response, or of each item of its list.
function answerType(name, isItem) {
  for (const service of ["Publisher", "Subscriber", "SchemaService"]) {
    const method = root.lookupService(`google.pubsub.v1.${service}`).methods[name];
    if (!method) continue;
    const type = root.lookup(`google.pubsub.v1.${method.responseType}`) ?? root.lookupType(method.responseType);
    if (!isItem) return type;
    return type.fieldsArray.find((field) => field.repeated).resolve().resolvedType;
  }
}

function plain(name, message, isItem) {
  const type = answerType(name, isItem);
  return type && type.name !== "Empty" ? json.toProto3JSON(type.fromObject(message)) : {};
}

const calls = {
  async publish({ topic, messages, ordered = false }) {
    const key = `${topic} ${ordered}`;
    if (!publishers.has(key)) publishers.set(key, pubsub.topic(topic, { messageOrdering: ordered }));
    const sent = messages.map(({ data = "", attributes, orderingKey }) =>
      publishers.get(key).publishMessage({ data: Buffer.from(data, "base64"), attributes, orderingKey }),
    );
    return { messageIds: await Promise.all(sent) };
  },

  async open({ subscription, max_messages = 1000 }) {
    const flowControl = { maxMessages: max_messages, allowExcessMessages: false };
    const stream = { arrived: [], held: new Map(), handles: 0, wake: () => {}, error: null };
    stream.subscription = pubsub.subscription(subscription, { flowControl, closeOptions: { behavior: "NACK" } });
    stream.subscription.on("message", (message) => {
      stream.arrived.push(message);
      stream.wake();
    });
    stream.subscription.on("error", (error) => {
      stream.error = error;
      stream.wake();
    });
    return { stream: String(streams.push(stream) - 1) };
  },

  async take({ stream: name, count, wait_ms }) {
    const stream = streams[name];
    const found = [];
    const end = Date.now() + wait_ms;
    while (found.length < count && Date.now() < end) {
      if (stream.arrived.length === 0) {
        if (stream.error) throw stream.error;
        let timer;
        await new Promise((wake) => {
          stream.wake = wake;
          timer = setTimeout(wake, end - Date.now());
        });
        clearTimeout(timer);
        continue;
      }
      const message = stream.arrived.shift();
      const handle = String(stream.handles++);
      stream.held.set(handle, message);
      const { id, attributes, orderingKey, deliveryAttempt } = message;
      const data = message.data.toString("base64");
      found.push({ handle, data, attributes, messageId: id, orderingKey, deliveryAttempt: deliveryAttempt || undefined });
    }
    return { messages: found };
  },

  async settle({ stream: name, handle, how }) {
    const message = streams[name].held.get(handle);
    streams[name].held.delete(handle);
    if (how === "ack" || how === "nack") message[how]();
    else return { result: await (how === "ack_confirmed" ? message.ackWithResponse() : message.nackWithResponse()) };
  },

  async close({ stream: name }) {
    await streams[name].subscription.close();
  },
};

driver.main("pubsub-node", version, async (name, values) => {
  try {
    return await (calls[name] ? calls[name](values) : unary(name, values));
  } catch (error) {
    throw error instanceof driver.Missing ? error : named(error);
  }
});
