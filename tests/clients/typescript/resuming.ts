// Calls that go on by themselves when the server is replaced. Made to be copied.
//
// The server may be replaced at any moment: by an upgrade, or because it died. Processes run on, and
// who connects meanwhile waits, since the listening sockets stay open. What breaks is a connection,
// with every call on it, and nobody can tell which of them had been obeyed.
//
// So what may be done twice is done again: a stream goes on after the last number that came, a write
// is repeated at its offset, a start under its id, and by `call` any of Get, List, Read, Wait, Kill,
// Resize, Screen, GetServerInfo, and Delete with `allowMissing`.
//
// Never repeated is what would happen twice: a start without an id, a write without an offset, Run,
// Signal, and what was typed in an Attach. Ask with Get what has become of those. Sleep would begin
// anew.

import { setTimeout } from "node:timers/promises";

import * as grpc from "@grpc/grpc-js";

import type { FollowResponse__Output as FollowResponse } from "./generated/procyard/v1/FollowResponse";
import type { GetServerInfoResponse__Output as ServerInfo } from "./generated/procyard/v1/GetServerInfoResponse";
import type { ProcessServiceClient as Client } from "./generated/procyard/v1/ProcessService";
import type { Selector } from "./generated/procyard/v1/Selector";
import type { Spec } from "./generated/procyard/v1/Spec";
import type { StartResponse__Output as StartResponse } from "./generated/procyard/v1/StartResponse";
import type { WatchResponse__Output as WatchResponse } from "./generated/procyard/v1/WatchResponse";
import type { WriteStdinResponse__Output as WriteStdinResponse } from "./generated/procyard/v1/WriteStdinResponse";

/** How long a call may take in all, and a stream be without a server, in milliseconds. */
const patience = 60_000;
/** Between two attempts. */
const firstPause = 50;
const longestPause = 1000;

/** For a client that tries to connect as often as we do; its own first pause would be a second. */
export const channelOptions: grpc.ChannelOptions = {
  "grpc.initial_reconnect_backoff_ms": firstPause,
  "grpc.max_reconnect_backoff_ms": longestPause,
};

/** Starts a process. `existed` in the answer may also mean that an earlier attempt has started it. */
export async function start(client: Client, id: string, spec: Spec): Promise<StartResponse> {
  if (!id) throw new Error("without an id, a second attempt would be a second process");
  return call<StartResponse>((...how) => client.start({ id, spec }, ...how));
}

/** Types into a process whose only writer this is; returns the offset of the next write. */
export async function write(client: Client, id: string, offset: number, data: Buffer, eof = false): Promise<number> {
  const request = { id, offset, data, eof };
  const { acceptedBytes } = await call<WriteStdinResponse>((...how) => client.writeStdin(request, ...how));
  return acceptedBytes;
}

/** Messages with a `chunk`, a `gap`, or at last the `end` of a transcript, each once. */
export async function* follow(client: Client, id: string, since?: number): AsyncGenerator<FollowResponse> {
  // Not with a view: there a chunk may come in pieces that have its number.
  for await (const message of resumed(() => client.follow({ id, sinceSeq: since }))) {
    const { chunk, gap, heartbeat, end } = message;
    if (chunk) since = chunk.seq + 1;
    if (gap) since = gap.toSeq + 1;
    if (heartbeat) since = heartbeat.seq;
    if (!heartbeat) yield message;
    if (end) return;
  }
}

/** Messages with an `event` or a `gap`, each once: those after the event `since`, or from now on. */
export async function watch(client: Client, selector: Selector, since?: number) {
  if (since === undefined) {
    // Now, not when the first one is asked for, nor when a broken stream is begun again.
    const info = await call<ServerInfo>((...how) => client.getServerInfo({}, ...how));
    since = info.counts?.latestEvent ?? 0;
  }
  return watchFrom(client, selector, since);
}

async function* watchFrom(client: Client, selector: Selector, since: number): AsyncGenerator<WatchResponse> {
  for await (const message of resumed(() => client.watch({ selector, sinceEvent: since }))) {
    const { event, gap, heartbeat } = message;
    if (event) since = event.seq;
    if (gap) since = gap.toSeq;
    if (heartbeat) since = heartbeat.seq;
    if (!heartbeat) yield message;
  }
}

type How<A> = [metadata: grpc.Metadata, options: grpc.CallOptions, done: grpc.requestCallback<A>];

/** The answer to a call that may be made twice. */
export async function call<A>(method: (...how: How<A>) => unknown): Promise<A> {
  const attempts = new Attempts();
  // Waits for a connection instead of failing for want of one.
  const metadata = new grpc.Metadata({ waitForReady: true });
  for (;;) {
    try {
      return await new Promise<A>((resolve, reject) => {
        method(metadata, { deadline: attempts.until }, (error, answer) => (error ? reject(error) : resolve(answer!)));
      });
    } catch (error) {
      await attempts.pauseAfter(error);
    }
  }
}

/** The messages of a stream and of those that are begun in its place when it breaks. */
async function* resumed<T>(begin: () => grpc.ClientReadableStream<T>): AsyncGenerator<T> {
  let attempts: Attempts | undefined;
  for (;;) {
    // A stream has no deadline, so it does not wait for a connection for ever either.
    const stream = begin();
    try {
      for await (const message of stream as AsyncIterable<T>) {
        attempts = undefined;
        yield message;
      }
      return;
    } catch (error) {
      attempts ??= new Attempts();
      await attempts.pauseAfter(error);
    } finally {
      // Who leaves early does not want to hear that it was canceled.
      stream.on("error", () => {});
      stream.cancel();
    }
  }
}

class Attempts {
  readonly until = Date.now() + patience;
  private pause = firstPause;

  /** Pauses after a connection was lost; any other error, and the last one, is the caller's. */
  async pauseAfter(error: unknown) {
    const isLost = (error as grpc.ServiceError).code === grpc.status.UNAVAILABLE;
    if (!isLost || this.until - Date.now() <= this.pause) throw error;
    await setTimeout(this.pause);
    this.pause = Math.min(2 * this.pause, longestPause);
  }
}
