#!/usr/bin/env node
// Driver of the AWS SDK for JavaScript v3: any call by its name in the service.

const sqs = require("@aws-sdk/client-sqs");
const { version } = require("@aws-sdk/client-sqs/package.json");
const driver = require("../../suite/driver.js");

const client = new sqs.SQSClient();

const isBytes = (key) => key === "BinaryValue";

// Decodes the bytes in the values of a call, which are in base64.
function bytesOf(value) {
  if (Array.isArray(value)) return value.map(bytesOf);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(
    Object.entries(value).map(([key, each]) => [key, isBytes(key) ? Buffer.from(each, "base64") : bytesOf(each)]),
  );
}

function plain(value) {
  if (value instanceof Uint8Array) return Buffer.from(value).toString("base64");
  if (Array.isArray(value)) return value.map(plain);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(
    Object.entries(value).filter(([key]) => key !== "$metadata").map(([key, each]) => [key, plain(each)]),
  );
}

async function call(operation, values) {
  const Command = sqs[`${operation}Command`];
  if (!Command) throw new driver.Missing(`the library has no ${operation}`);
  try {
    return plain(await client.send(new Command(bytesOf(values))));
  } catch (error) {
    error.names = [error.Code, error.Error?.Code].filter(Boolean);
    throw error;
  }
}

driver.main("aws-sdk-js", version, call);
