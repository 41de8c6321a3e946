// The step of the walk at a guarded door: TLS, a token, a client's certificate.

import { strict as assert } from "node:assert";
import { readFileSync } from "node:fs";
import { join } from "node:path";

import * as grpc from "@grpc/grpc-js";

import type { GetRequest } from "./generated/procyard/v1/GetRequest";
import type { ListRequest } from "./generated/procyard/v1/ListRequest";
import type { StartRequest } from "./generated/procyard/v1/StartRequest";
import type { StartResponse__Output as StartResponse } from "./generated/procyard/v1/StartResponse";
import type { ProcessServiceClient as Client } from "./generated/procyard/v1/ProcessService";

type Service = new (address: string, credentials: grpc.ChannelCredentials) => Client;
type Done<T> = (error: grpc.ServiceError | null, answer?: T) => void;
/** The error of a call that must fail, with its reason. */
type Failure = (call: Promise<unknown>) => Promise<{ code: grpc.status; reason: string }>;

const file = (name: string) => readFileSync(join(process.env["PROCYARD_DOOR"] ?? "", name));
const text = (name: string) => file(name).toString().trim();

export async function theDoorKnowsWhoCalls(service: Service, id: (name: string) => string, failure: Failure) {
  const token = knock(service, { token: text("token") });
  assert.equal(await owner(token, id("door")), "token-walker");

  const certificate = knock(service, { certificate: "client" });
  assert.equal(await owner(certificate, id("hall")), "walker");
  const foreign = promise<unknown>((done) => certificate.get({ id: id("door") } satisfies GetRequest, done));
  assert.deepEqual(await failure(foreign), { code: grpc.status.NOT_FOUND, reason: "PROCESS_NOT_FOUND" });

  const nobody = knock(service, {});
  assert.deepEqual(await failure(list(nobody)), { code: grpc.status.UNAUTHENTICATED, reason: "NO_CREDENTIALS" });
  const wrong = knock(service, { token: "wrong" });
  assert.deepEqual(await failure(list(wrong)), { code: grpc.status.UNAUTHENTICATED, reason: "BAD_CREDENTIALS" });

  const stranger = knock(service, { certificate: "stranger" });
  await assert.rejects(list(stranger), ({ code }: grpc.ServiceError) => code === grpc.status.UNAVAILABLE);
  for (const client of [token, certificate, nobody, wrong, stranger]) client.close();
}

/** A client at the guarded door, for who has a token or a certificate. */
function knock(service: Service, { token, certificate }: { token?: string; certificate?: string }): Client {
  const [key, chain] = certificate ? [file(`${certificate}.key`), file(`${certificate}.pem`)] : [null, null];
  let credentials = grpc.credentials.createSsl(file("ca.pem"), key, chain);
  if (token) {
    const shown = grpc.credentials.createFromMetadataGenerator((_, done) => {
      const metadata = new grpc.Metadata();
      metadata.set("authorization", `Bearer ${token}`);
      done(null, metadata);
    });
    credentials = grpc.credentials.combineChannelCredentials(credentials, shown);
  }
  return new service(text("address"), credentials);
}

async function owner(client: Client, id: string) {
  const request: StartRequest = { id, spec: { shell: "exit 0" }, wait: { exit: {} } };
  const { process } = await promise<StartResponse>((done) => client.start(request, done));
  return process?.spec?.owner;
}

function list(client: Client) {
  return promise<unknown>((done) => client.list({} satisfies ListRequest, done));
}

function promise<T>(call: (done: Done<T>) => void): Promise<T> {
  return new Promise((resolve, reject) => {
    call((error, answer) => (error || answer === undefined ? reject(error) : resolve(answer)));
  });
}
