// The walk in TypeScript. All steps share what stands above them.

import { strict as assert } from "node:assert";
import { randomBytes } from "node:crypto";
import { join } from "node:path";

import * as grpc from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";
import { protoPath as healthProto } from "grpc-health-check";
import { BadRequest, ErrorInfo, ResourceInfo } from "nice-grpc-error-details";
import { Status } from "nice-grpc-error-details/lib/proto/google/rpc/status";

import type { ProtoGrpcType as Health } from "./generated/health";
import type { AttachResponse__Output as AttachResponse } from "./generated/procyard/v1/AttachResponse";
import type { Chunk__Output as Chunk } from "./generated/procyard/v1/Chunk";
import type { Event__Output as Event } from "./generated/procyard/v1/Event";
import type { FollowResponse__Output as FollowResponse } from "./generated/procyard/v1/FollowResponse";
import type { SleepResponse__Output as SleepResponse } from "./generated/procyard/v1/SleepResponse";
import type { Spec } from "./generated/procyard/v1/Spec";
import type { Stream } from "./generated/procyard/v1/Stream";
import type { WaitFor } from "./generated/procyard/v1/WaitFor";
import type { WatchRequest } from "./generated/procyard/v1/WatchRequest";
import type { WatchResponse__Output as WatchResponse } from "./generated/procyard/v1/WatchResponse";
import type { ProtoGrpcType as Procyard } from "./generated/service";
import { theDoorKnowsWhoCalls } from "./door";
import { noRestartLosesOrDoublesAnything } from "./restarting";
import { channelOptions } from "./resuming";

// Two sleeps, and a word when both of them are executed.
const tree = "for n in 1 2; do sleep 1000 & until grep -q sleep /proc/$!/comm; do :; done; done; echo up; wait";
const script = `echo out; echo err >&2; printf '{"run": %s}' "$PROCYARD_RUN" >"$PROCYARD_OUTPUT"`;
const sleep: Spec = { argv: { args: ["sleep", "1000"] } };
const exit: WaitFor = { exit: {} };

const address = `unix://${process.env["PROCYARD_SOCKET"]}`;
const insecure = grpc.credentials.createInsecure();
const { ProcessService } = load<Procyard>("procyard/v1/service.proto").procyard.v1;
const client = new ProcessService(address, insecure, channelOptions);
const health = new (load<Health>(healthProto).grpc.health.v1.Health)(address, insecure);

const walk = `typescript-${randomBytes(4).toString("hex")}`;
const id = (name: string) => `${walk}-${name}`;
const made: string[] = [];
const followed: FollowResponse[] = [];
let follower: AsyncIterator<FollowResponse>;

const steps = {
  async "the server is there"() {
    const info = await ask(client.getServerInfo, {});
    assert.ok(info.version && info.instanceId);
    const { status } = await ask(health.check, {}, health);
    assert.equal(status, "SERVING");
  },

  async "a repeated start is no second process"() {
    const cat: Spec = { argv: { args: ["/bin/cat"] }, pipes: { stdin: true } };
    const first = await start("cat", cat);
    const second = await start("cat", cat);
    assert.deepEqual([first.existed, second.existed], [false, true]);
    assert.equal(first.process?.pid, second.process?.pid);
  },

  async "a repeated write is no second write"() {
    follower = client.follow({ id: id("cat") })[Symbol.asyncIterator]();
    const hello = { id: id("cat"), text: "hello", enter: true, offset: 0 };
    const first = await ask(client.writeStdin, hello);
    assert.deepEqual([first.bytesWritten, first.acceptedBytes], [6, 6]);
    const second = await ask(client.writeStdin, hello);
    assert.deepEqual([second.bytesWritten, second.acceptedBytes], [0, 6]);
    await followUntil(() => output().length >= 6);
    assert.equal(output(), "hello\n");
  },

  async "a timeout is an answer"() {
    const hello = await ask(client.wait, { id: id("cat"), wait: { output: { regex: "hello" } } });
    assert.deepEqual([hello.wait?.met, hello.wait?.timedOut, hello.wait?.match?.text], [true, false, "hello"]);
    const late = await ask(client.wait, { id: id("cat"), wait: { exit: {}, timeout: { nanos: 100_000_000 } } });
    assert.deepEqual([late.wait?.met, late.wait?.timedOut], [false, true]);
  },

  async "exit codes are told"() {
    const three = await start("three", { shell: "echo out; echo err >&2; exit 3" }, exit);
    const end = three.process?.exit;
    assert.deepEqual([three.wait?.met, end?.code], [true, 3]);
    assert.deepEqual([end?.outcome, end?.cause], ["OUTCOME_FAILED", "CAUSE_EXITED"]);
    assert.equal(outputOf(three.chunks, "STREAM_STDOUT"), "out\n");
    assert.equal(outputOf(three.chunks, "STREAM_STDERR"), "err\n");
    const zero = await start("zero", { shell: "exit 0" }, exit);
    assert.deepEqual([zero.process?.exit?.code, zero.process?.exit?.outcome], [0, "OUTCOME_SUCCEEDED"]);
  },

  async "the end comes once and last"() {
    await ask(client.writeStdin, { id: id("cat"), eof: true });
    await followUntil(() => false);
    assert.equal(followed.filter(({ end }) => end).length, 1);
    assert.equal(followed.at(-1)?.end?.process?.exit?.outcome, "OUTCOME_SUCCEEDED");
    assert.equal(output(), "hello\n");
  },

  async "a kill ends the tree"() {
    const up = await start("tree", { shell: tree }, { output: { regex: "up" } });
    assert.ok(up.wait?.met);
    const { processes, killed } = await ask(client.kill, { id: id("tree") });
    assert.equal(processes[0]?.exit?.outcome, "OUTCOME_CANCELED");
    assert.equal(processes[0]?.exit?.cause, "CAUSE_KILLED");
    assert.equal(killed.filter(({ command }) => command === "sleep").length, 2);
  },

  async "no event is lost or doubled"() {
    const replay = await watch({ sinceEvent: 0, replayOnly: true });
    for (const id of made) {
      const completed = replay.filter(({ processId, kind }) => processId === id && kind === "KIND_COMPLETED");
      assert.equal(completed.length, 1, id);
    }

    const begin = () => start("first", { shell: "exit 0" }, exit);
    const before = await watch({}, (event) => event.processId === id("first"), begin);
    await start("second", { shell: "exit 0" }, exit);
    const isLast = ({ processId, kind }: Event) => processId === id("second") && kind === "KIND_COMPLETED";
    const seen = [...before, ...(await watch({ sinceEvent: before.at(-1)?.seq }, isLast))];
    const first = seen[0]?.seq ?? 0;
    assert.deepEqual(seen.map(({ seq }) => seq), seen.map((_, i) => first + i));
    assert.deepEqual(
      seen.filter(({ processId }) => made.includes(processId)).map(({ processId, kind }) => [processId, kind]),
      ["first", "second"].flatMap((name) => [[id(name), "KIND_STARTED"], [id(name), "KIND_COMPLETED"]]),
    );
  },

  async "a queue runs one at a time"() {
    const queue = id("queue");
    const ref = id("ref");
    const sleeper = await start("sleeper", { ...sleep, queue });
    assert.equal(sleeper.process?.state, "STATE_RUNNING");
    const queued = await start("script", { script: { code: script, interpreter: ["/bin/sh", "-eu"] }, queue, ref });
    assert.deepEqual([queued.process?.state, queued.process?.queuePosition], ["STATE_QUEUED", 1]);
    const { processes } = await ask(client.list, { selector: { ref } });
    assert.deepEqual(processes.map(({ id, state }) => [id, state]), [[id("script"), "STATE_QUEUED"]]);
    await ask(client.kill, { id: id("sleeper") });
    const { process } = await ask(client.wait, { id: id("script"), wait: exit });
    assert.equal(process?.exit?.outcome, "OUTCOME_SUCCEEDED");
  },

  async "a script sets its output"() {
    const { process } = await ask(client.get, { id: id("script") });
    assert.equal(process?.output?.value?.structValue?.fields?.["run"]?.numberValue, 1);
    const out = await ask(client.read, { id: id("script"), streams: ["STREAM_STDOUT"] });
    assert.deepEqual([out.ended, textOf(out.chunks)], [true, "out\n"]);
    const err = await ask(client.read, { id: id("script"), streams: ["STREAM_STDERR"] });
    assert.deepEqual([err.ended, textOf(err.chunks)], [true, "err\n"]);
  },

  async "only force clears what was printed"() {
    const refused = await failure(ask(client.run, { id: id("script") }));
    assert.equal(refused.code, grpc.status.FAILED_PRECONDITION);
    assert.equal(detail(refused, ErrorInfo).reason, "HAS_OUTPUT");
    const again = await ask(client.run, { id: id("script"), force: true });
    assert.equal(again.process?.run, 2);
    const { process } = await ask(client.wait, { id: id("script"), wait: exit });
    assert.equal(process?.output?.value?.structValue?.fields?.["run"]?.numberValue, 2);
  },

  async "a service is there once"() {
    const shell = "echo up; exec sleep 1000";
    const scope: Spec = { mode: "MODE_SERVICE", service: walk, workspace: walk };
    const service: Spec = { shell, ...scope, readiness: { outputRegex: "up" } };
    const first = await start("service", service, { ready: {} });
    assert.deepEqual([first.wait?.met, first.process?.ready], [true, true]);
    const refused = await failure(ask(client.start, { spec: service }));
    assert.equal(refused.code, grpc.status.ALREADY_EXISTS);
    const { reason, metadata } = detail(refused, ErrorInfo);
    assert.deepEqual([reason, metadata["id"]], ["SERVICE_RUNNING", id("service")]);
  },

  async "a selector spares services"() {
    await start("worker", { ...sleep, workspace: walk });
    const work = await ask(client.kill, { selector: { workspace: walk } });
    assert.deepEqual(work.processes.map(({ id }) => id), [id("worker")]);
    const { process } = await ask(client.get, { id: id("service") });
    assert.equal(process?.state, "STATE_RUNNING");
    const ended = await ask(client.kill, { selector: { workspace: walk, mode: "MODE_SERVICE" } });
    assert.deepEqual(ended.processes.map(({ id, state }) => [id, state]), [[id("service"), "STATE_EXITED"]]);
  },

  async "a terminal shows what was typed"() {
    const terminal = { id: id("terminal") };
    await start("terminal", { argv: { args: ["cat"] }, terminal: {} });
    const echo: WaitFor = { output: { regex: "hello\\s+hello" } };
    const typed = await ask(client.writeStdin, { ...terminal, text: "hello", enter: true, wait: echo });
    assert.ok(typed.wait?.met);
    await ask(client.resize, { ...terminal, rows: 30, cols: 100 });
    const { rows, size } = await ask(client.screen, terminal);
    assert.deepEqual(rows.slice(0, 2), ["hello", "hello"]);
    assert.deepEqual([size?.rows, size?.cols], [30, 100]);
    const { process } = await ask(client.writeStdin, { ...terminal, keys: { names: ["ctrl+d"] }, wait: exit });
    assert.equal(process?.exit?.outcome, "OUTCOME_SUCCEEDED");
  },

  async "a view counts what it leaves out"() {
    await start("lines", { shell: "seq 1000" }, exit);
    const some = await ask(client.read, { id: id("lines"), view: { grep: "^500$", context: 1 } });
    assert.deepEqual([textOf(some.chunks), some.omitted?.lines], ["499\n500\n501\n", 997]);
    const messages = await all<FollowResponse>(client.follow({ id: id("lines"), view: { grep: "^1000$" } }));
    assert.equal(textOf(messages.flatMap(({ chunk }) => chunk ?? [])), "1000\n");
    assert.equal(messages.at(-1)?.end?.omitted?.lines, 999);
  },

  async "a completion wakes a sleeper"() {
    const ref = id("alarm");
    const call = client.sleep({ duration: { seconds: 600 }, tickInterval: { seconds: 5 }, wakeOn: { ref } });
    const sleeping: AsyncIterableIterator<SleepResponse> = call[Symbol.asyncIterator]();
    assert.ok((await sleeping.next()).value.tick);
    await start("alarm", { shell: "exit 0", ref });
    const done = (await all(sleeping)).at(-1)?.done;
    assert.deepEqual([done?.interrupted, done?.event?.processId], [true, id("alarm")]);
  },

  async "leaving ends nothing"() {
    await start("attached", { argv: { args: ["cat"] }, pipes: { stdin: true } });
    const call = client.attach();
    const attached: AsyncIterator<AttachResponse> = call[Symbol.asyncIterator]();
    call.write({ start: { id: id("attached") } });
    assert.equal((await attached.next()).value.attached.process.id, id("attached"));
    call.write({ text: "hello\n" });
    assert.equal((await attached.next()).value.chunk.data.toString(), "hello\n");
    call.cancel();
    const { process } = await ask(client.get, { id: id("attached") });
    assert.equal(process?.state, "STATE_RUNNING");
    await ask(client.kill, { id: id("attached") });
  },

  async "no restart loses or doubles anything"() {
    made.push(...(await noRestartLosesOrDoublesAnything(client, walk)));
  },

  async "errors carry their details"() {
    const absent = await failure(ask(client.get, { id: id("nobody") }));
    assert.equal(absent.code, grpc.status.NOT_FOUND);
    const { domain, reason } = detail(absent, ErrorInfo);
    assert.deepEqual([domain, reason], ["procyard", "PROCESS_NOT_FOUND"]);
    assert.equal(detail(absent, ResourceInfo).resourceName, id("nobody"));

    const spec: Spec = { shell: "exit 0", labels: { "a bad key": "" }, timeout: { seconds: -1 } };
    const refused = await failure(ask(client.start, { id: "../x", spec }));
    assert.equal(refused.code, grpc.status.INVALID_ARGUMENT);
    assert.equal(detail(refused, ErrorInfo).reason, "INVALID_FIELD");
    const fields = detail(refused, BadRequest).fieldViolations.map(({ field }) => field);
    for (const name of ["id", "spec.labels", "spec.timeout"]) {
      assert.ok(fields.some((field) => field.startsWith(name)), `${name} is not in ${fields}`);
    }
  },

  async "the door knows who calls"() {
    await theDoorKnowsWhoCalls(ProcessService, id, async (call) => {
      const refused = await failure(call);
      return { code: refused.code, reason: detail(refused, ErrorInfo).reason };
    });
  },

  async "what was deleted is gone"() {
    for (const id of made) {
      await ask(client.delete, { id });
      assert.equal((await failure(ask(client.get, { id }))).code, grpc.status.NOT_FOUND);
    }
  },
};

function load<T>(proto: string): T {
  const includeDirs = [join(__dirname, "../../../../../proto")];
  const definition = loadSync(proto, { longs: Number, enums: String, defaults: true, oneofs: true, includeDirs });
  return grpc.loadPackageDefinition(definition) as unknown as T;
}

type Unary<Q, A> = (request: Q, done: grpc.requestCallback<A>) => grpc.ClientUnaryCall;

/** The answer to a call, as a promise. */
function ask<Q, A>(method: Unary<Q, A>, request: Q, of: grpc.Client = client): Promise<A> {
  return new Promise((resolve, reject) => {
    method.call(of, request, (error, answer) => (error ? reject(error) : resolve(answer!)));
  });
}

async function start(name: string, spec: Spec, wait?: WaitFor) {
  const answer = await ask(client.start, { id: id(name), spec, wait });
  if (!answer.existed) made.push(id(name));
  return answer;
}

/** The messages of a stream, to its end. */
async function all<T>(stream: AsyncIterable<T>): Promise<T[]> {
  const messages: T[] = [];
  for await (const message of stream) messages.push(message);
  return messages;
}

async function followUntil(isEnough: () => boolean) {
  for (let next = await follower.next(); !next.done; next = await follower.next()) {
    followed.push(next.value);
    if (isEnough()) return;
  }
}

/** What the follower was sent so far. */
function output(): string {
  return outputOf(followed.flatMap(({ chunk }) => chunk ?? []), "STREAM_STDOUT");
}

function outputOf(chunks: Chunk[], stream: Stream): string {
  return textOf(chunks.filter((chunk) => chunk.stream === stream));
}

function textOf(chunks: Chunk[]): string {
  return Buffer.concat(chunks.map(({ data }) => data)).toString();
}

/**
 * The events of a watch, up to the last one that is wanted. What is to happen once the watch has
 * begun, happens at its first heartbeat.
 */
async function watch(request: WatchRequest, isLast = (_: Event) => false, then?: () => Promise<unknown>) {
  const call = client.watch(request);
  const stream: AsyncIterator<WatchResponse> = call[Symbol.asyncIterator]();
  if (then) {
    assert.ok((await stream.next()).value.heartbeat);
    await then();
  }
  const found: Event[] = [];
  for (let next = await stream.next(); !next.done; next = await stream.next()) {
    if (!next.value.event) continue;
    found.push(next.value.event);
    if (isLast(next.value.event)) break;
  }
  call.cancel();
  return found;
}

/** The error of a call that must fail. */
async function failure(call: Promise<unknown>): Promise<grpc.ServiceError> {
  const answer = await call.catch((error: grpc.ServiceError) => error);
  assert.ok(answer instanceof Error, `no error, but ${JSON.stringify(answer)}`);
  return answer as grpc.ServiceError;
}

/** The detail of this type that an error must carry. */
function detail<T>(error: grpc.ServiceError, type: { $type: string; decode(data: Uint8Array): T }): T {
  const status = Status.decode(error.metadata.get("grpc-status-details-bin")[0] as Buffer);
  const packed = status.details.find(({ typeUrl }) => typeUrl.endsWith(`/${type.$type}`));
  assert.ok(packed, `${type.$type} is not in ${JSON.stringify(status)}`);
  return type.decode(packed.value);
}

async function main() {
  for (const [index, [name, step]] of Object.entries(steps).entries()) {
    console.log(`${String(index + 1).padStart(2)} ${name}`);
    await step();
  }
  client.close();
  health.close();
}

void main();
