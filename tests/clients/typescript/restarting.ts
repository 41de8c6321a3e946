// The step of the walk in which the server is killed: whoever uses `resuming` does not notice.

import { strict as assert } from "node:assert";
import { execFile } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";

import type { Event__Output as Event } from "./generated/procyard/v1/Event";
import type { ProcessServiceClient } from "./generated/procyard/v1/ProcessService";
import type { Spec } from "./generated/procyard/v1/Spec";
import type { WatchResponse__Output as WatchResponse } from "./generated/procyard/v1/WatchResponse";
import * as resuming from "./resuming";

/** How often the server is killed, and how many processes are started meanwhile each time. */
const kills = 5;
const starts = 10;

/** Returns the processes that it has begun. */
export async function noRestartLosesOrDoublesAnything(client: ProcessServiceClient, prefix: string): Promise<string[]> {
  if (!process.env["PROCYARD_KEEPER"]) {
    console.log("   skipped: PROCYARD_KEEPER does not tell whose server to kill");
    return [];
  }
  const place = mkdtempSync(join(tmpdir(), "walk-"));
  const restarts = new Restarts(client, prefix, place);
  const watching = restarts.told(await resuming.watch(client, restarts.all));
  await Promise.all([
    restarts.follow("printed", "\n", {}),
    restarts.follow("drawn", "\r\n", { terminal: {} }),
    restarts.type(),
    restarts.startWhileServersDie(),
  ]);
  await restarts.begin("last", { shell: "exit 0" });
  await restarts.checkEvents(await watching);
  rmSync(place, { recursive: true });
  return restarts.begun;
}

class Restarts {
  readonly begun: string[] = [];
  readonly all: { workspace: string };
  private readonly over: string;
  private readonly log: string;

  constructor(
    private readonly client: ProcessServiceClient,
    private readonly prefix: string,
    place: string,
  ) {
    this.all = { workspace: this.id("restarts") };
    this.over = join(place, "over");
    this.log = join(place, "log");
  }

  private id(name: string) {
    return `${this.prefix}-${name}`;
  }

  async begin(name: string, spec: Spec): Promise<string> {
    await resuming.start(this.client, this.id(name), { ...spec, ...this.all });
    this.begun.push(this.id(name));
    return this.id(name);
  }

  /** All that a process prints. Every chunk comes once, none is missing, and the end is last. */
  private async printed(id: string): Promise<string> {
    let text = "";
    let next = 1;
    for await (const { chunk, end } of resuming.follow(this.client, id)) {
      if (end) {
        assert.equal(end.process?.exit?.outcome, "OUTCOME_SUCCEEDED");
        assert.equal(end.process?.transcript?.totalBytes, text.length);
        return text;
      }
      assert.equal(chunk?.seq, next++);
      text += chunk?.data;
    }
    throw new Error(`${id} has no end`);
  }

  /** Every line of one who prints all the time comes once, and in order. */
  async follow(name: string, newline: string, io: Spec) {
    const printer = `n=0; until [ -e ${this.over} ]; do echo $n; n=$((n + 1)); sleep 0.01; done`;
    const text = await this.printed(await this.begin(name, { ...io, shell: printer }));
    const lines = text.split(newline).slice(0, -1).map((_, n) => `${n}${newline}`);
    assert.equal(text, lines.join(""));
  }

  /** Every byte that is typed comes back once. */
  async type() {
    const id = await this.begin("typed", { argv: { args: ["cat"] }, pipes: { stdin: true } });
    let typed = "";
    while (!existsSync(this.over)) {
      const line = `${typed.length}\n`;
      const next = await resuming.write(this.client, id, typed.length, Buffer.from(line));
      typed += line;
      assert.equal(next, typed.length);
    }
    await resuming.write(this.client, id, typed.length, Buffer.of(), true);
    assert.equal(await this.printed(id), typed);
  }

  /** Every id is one process, which says so in a file of all. */
  async startWhileServersDie() {
    const started: string[] = [];
    for (let kill = 0; kill < kills; kill++) {
      const killing = promisify(execFile)(join(__dirname, "../../../kill-server"));
      for (let number = 0; number < starts; number++) {
        const said = `echo $PROCYARD_ID | tee -a ${this.log}`;
        const id = await this.begin(`short-${started.length}`, { shell: said });
        started.push(id);
        assert.equal(await this.printed(id), `${id}\n`);
      }
      await killing;
    }
    writeFileSync(this.over, "");
    assert.deepEqual(readFileSync(this.log, "utf8").split("\n"), [...started, ""]);
  }

  /** All events, until the last process has completed. */
  async told(watching: AsyncIterable<WatchResponse>): Promise<Event[]> {
    const told: Event[] = [];
    for await (const { event } of watching) {
      assert.ok(event);
      told.push(event);
      if (event.processId === this.id("last") && event.kind === "KIND_COMPLETED") break;
    }
    return told;
  }

  async checkEvents(told: Event[]) {
    for (const id of this.begun) {
      const kinds = told.filter(({ processId }) => processId === id).map(({ kind }) => kind);
      assert.deepEqual(kinds, ["KIND_STARTED", "KIND_COMPLETED"], id);
    }
    const kept: number[] = [];
    const replay = this.client.watch({ selector: this.all, sinceEvent: 0, replayOnly: true });
    for await (const { event } of replay as AsyncIterable<WatchResponse>) if (event) kept.push(event.seq);
    assert.deepEqual(told.map(({ seq }) => seq), kept);
  }
}
