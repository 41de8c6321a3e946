// The walk in Go. Each step is a method of walk; all of them share its fields.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "procyard/walk/generated/procyard/v1"
	"procyard/walk/resuming"
)

// Two sleeps, and a word when both of them are executed.
const tree = "for n in 1 2; do sleep 1000 & until grep -q sleep /proc/$!/comm; do :; done; done; echo up; wait"

const script = `echo out; echo err >&2; printf '{"run": %s}' "$PROCYARD_RUN" >"$PROCYARD_OUTPUT"`

var ctx = context.Background()

var exit = &pb.WaitFor{Until: &pb.WaitFor_Exit_{Exit: &pb.WaitFor_Exit{}}}

type walk struct {
	health   grpc_health_v1.HealthClient
	client   pb.ProcessServiceClient
	name     string
	made     []string
	follower grpc.ServerStreamingClient[pb.FollowResponse]
	followed []*pb.FollowResponse
}

func main() {
	log.SetFlags(log.Lshortfile)
	connection := must(resuming.Connect("unix://" + os.Getenv("PROCYARD_SOCKET")))
	defer connection.Close()
	w := &walk{
		health: grpc_health_v1.NewHealthClient(connection),
		client: pb.NewProcessServiceClient(connection),
		name:   "go-" + rand.Text()[:8],
	}
	for number, step := range []struct {
		name string
		take func()
	}{
		{"the server is there", w.theServerIsThere},
		{"a repeated start is no second process", w.aRepeatedStartIsNoSecondProcess},
		{"a repeated write is no second write", w.aRepeatedWriteIsNoSecondWrite},
		{"a timeout is an answer", w.aTimeoutIsAnAnswer},
		{"exit codes are told", w.exitCodesAreTold},
		{"the end comes once and last", w.theEndComesOnceAndLast},
		{"a kill ends the tree", w.aKillEndsTheTree},
		{"no event is lost or doubled", w.noEventIsLostOrDoubled},
		{"a queue runs one at a time", w.aQueueRunsOneAtATime},
		{"a script sets its output", w.aScriptSetsItsOutput},
		{"only force clears what was printed", w.onlyForceClearsWhatWasPrinted},
		{"a service is there once", w.aServiceIsThereOnce},
		{"a selector spares services", w.aSelectorSparesServices},
		{"a terminal shows what was typed", w.aTerminalShowsWhatWasTyped},
		{"a view counts what it leaves out", w.aViewCountsWhatItLeavesOut},
		{"a completion wakes a sleeper", w.aCompletionWakesASleeper},
		{"leaving ends nothing", w.leavingEndsNothing},
		{"no restart loses or doubles anything", w.noRestartLosesOrDoublesAnything},
		{"errors carry their details", w.errorsCarryTheirDetails},
		{"the door knows who calls", w.theDoorKnowsWhoCalls},
		{"what was deleted is gone", w.whatWasDeletedIsGone},
	} {
		fmt.Printf("%2d %s\n", number+1, step.name)
		step.take()
	}
}

func (w *walk) theServerIsThere() {
	info := must(w.client.GetServerInfo(ctx, &pb.GetServerInfoRequest{}))
	expect(info.Version != "" && info.InstanceId != "", info)
	health := must(w.health.Check(ctx, &grpc_health_v1.HealthCheckRequest{}))
	expect(health.Status == grpc_health_v1.HealthCheckResponse_SERVING, health)
}

func (w *walk) aRepeatedStartIsNoSecondProcess() {
	cat := argv("/bin/cat")
	cat.Io = &pb.Spec_Pipes{Pipes: &pb.Pipes{Stdin: true}}
	first, second := w.start("cat", cat, nil), w.start("cat", cat, nil)
	expect(!first.Existed && second.Existed, second)
	expect(first.Process.Pid == second.Process.Pid, second)
}

func (w *walk) aRepeatedWriteIsNoSecondWrite() {
	w.follower = must(w.client.Follow(ctx, &pb.FollowRequest{Id: w.id("cat")}))
	hello := &pb.WriteStdinRequest{
		Id:     w.id("cat"),
		Input:  &pb.WriteStdinRequest_Text{Text: "hello"},
		Enter:  true,
		Offset: proto.Uint64(0),
	}
	first := must(w.client.WriteStdin(ctx, hello))
	expect(first.BytesWritten == 6 && first.AcceptedBytes == 6, first)
	second := must(w.client.WriteStdin(ctx, hello))
	expect(second.BytesWritten == 0 && second.AcceptedBytes == 6, second)
	w.followUntil(func() bool { return len(w.output()) >= 6 })
	expect(w.output() == "hello\n", w.followed)
}

func (w *walk) aTimeoutIsAnAnswer() {
	met := w.wait("cat", output("hello")).Wait
	expect(met.Met && !met.TimedOut && met.Match.GetText() == "hello" && met.Match.GetSeq() > 0, met)
	soon := &pb.WaitFor{Until: exit.Until, Timeout: durationpb.New(100 * time.Millisecond)}
	late := w.wait("cat", soon).Wait
	expect(late.TimedOut && !late.Met, late)
}

func (w *walk) exitCodesAreTold() {
	three := w.start("three", shell("echo out; echo err >&2; exit 3"), exit)
	end := three.Process.Exit
	expect(three.Wait.Met && end.Code != nil && *end.Code == 3, three)
	expect(end.Outcome == pb.Outcome_OUTCOME_FAILED && end.Cause == pb.Cause_CAUSE_EXITED, three)
	expect(outputOf(three.Chunks, pb.Stream_STREAM_STDOUT) == "out\n", three)
	expect(outputOf(three.Chunks, pb.Stream_STREAM_STDERR) == "err\n", three)
	zero := w.start("zero", shell("exit 0"), exit).Process.Exit
	expect(zero.Code != nil && *zero.Code == 0, zero)
	expect(zero.Outcome == pb.Outcome_OUTCOME_SUCCEEDED, zero)
}

func (w *walk) theEndComesOnceAndLast() {
	must(w.client.WriteStdin(ctx, &pb.WriteStdinRequest{Id: w.id("cat"), Eof: true}))
	w.followUntil(func() bool { return false })
	ends := 0
	for _, message := range w.followed {
		if message.GetEnd() != nil {
			ends++
		}
	}
	last := w.followed[len(w.followed)-1].GetEnd()
	expect(ends == 1 && last != nil, w.followed)
	expect(last.Process.Exit.Outcome == pb.Outcome_OUTCOME_SUCCEEDED, last)
	expect(w.output() == "hello\n", w.followed)
}

func (w *walk) aKillEndsTheTree() {
	up := w.start("tree", shell(tree), output("up"))
	expect(up.Wait.Met, up)
	answer := w.kill("tree")
	end := answer.Processes[0].Exit
	expect(end.Outcome == pb.Outcome_OUTCOME_CANCELED && end.Cause == pb.Cause_CAUSE_KILLED, answer)
	sleeps := 0
	for _, killed := range answer.Killed {
		if killed.Command == "sleep" {
			sleeps++
		}
	}
	expect(sleeps == 2, answer)
}

func (w *walk) noEventIsLostOrDoubled() {
	never := func(*pb.Event) bool { return false }
	completed := map[string]int{}
	for _, event := range w.watch(&pb.WatchRequest{SinceEvent: proto.Uint64(0), ReplayOnly: true}, nil, never) {
		if event.Kind == pb.Kind_KIND_COMPLETED {
			completed[event.ProcessId]++
		}
	}
	for _, id := range w.made {
		expect(completed[id] == 1, id, completed)
	}

	seen := w.watch(&pb.WatchRequest{}, func() { w.start("first", shell("exit 0"), exit) },
		func(event *pb.Event) bool { return event.ProcessId == w.id("first") })
	w.start("second", shell("exit 0"), exit)
	last := seen[len(seen)-1].Seq
	seen = append(seen, w.watch(&pb.WatchRequest{SinceEvent: &last}, nil, func(event *pb.Event) bool {
		return event.ProcessId == w.id("second") && event.Kind == pb.Kind_KIND_COMPLETED
	})...)
	var told []string
	for i, event := range seen {
		expect(event.Seq == seen[0].Seq+uint64(i), seen)
		if strings.HasPrefix(event.ProcessId, w.name) {
			told = append(told, strings.TrimPrefix(event.ProcessId, w.name)+" "+event.Kind.String())
		}
	}
	expect(strings.Join(told, ", ") == "-first KIND_STARTED, -first KIND_COMPLETED, "+
		"-second KIND_STARTED, -second KIND_COMPLETED", told)
}

func (w *walk) aQueueRunsOneAtATime() {
	sleeper := argv("sleep", "1000")
	sleeper.Queue = w.id("queue")
	first := w.start("sleeper", sleeper, nil).Process
	expect(first.State == pb.State_STATE_RUNNING, first)
	second := w.start("script", &pb.Spec{
		Program: &pb.Spec_Script{Script: &pb.Script{Code: script, Interpreter: []string{"/bin/sh", "-eu"}}},
		Queue:   w.id("queue"),
		Ref:     w.id("ref"),
	}, nil).Process
	expect(second.State == pb.State_STATE_QUEUED && second.QueuePosition == 1, second)
	found := must(w.client.List(ctx, &pb.ListRequest{Selector: &pb.Selector{Ref: w.id("ref")}})).Processes
	expect(len(found) == 1 && found[0].Id == second.Id && found[0].State == pb.State_STATE_QUEUED, found)
	w.kill("sleeper")
	end := w.wait("script", exit).Process.Exit
	expect(end.Outcome == pb.Outcome_OUTCOME_SUCCEEDED, end)
}

func (w *walk) aScriptSetsItsOutput() {
	set := w.get("script").Output.GetValue().GetStructValue().AsMap()
	expect(len(set) == 1 && set["run"] == 1.0, set)
	for stream, printed := range map[pb.Stream]string{
		pb.Stream_STREAM_STDOUT: "out\n",
		pb.Stream_STREAM_STDERR: "err\n",
	} {
		read := must(w.client.Read(ctx, &pb.ReadRequest{Id: w.id("script"), Streams: []pb.Stream{stream}}))
		expect(read.Ended && textOf(read.Chunks) == printed, read)
	}
}

func (w *walk) onlyForceClearsWhatWasPrinted() {
	_, err := w.client.Run(ctx, &pb.RunRequest{Id: w.id("script")})
	expect(status.Code(err) == codes.FailedPrecondition, err)
	info := detail[*errdetails.ErrorInfo](err)
	expect(info.Reason == "HAS_OUTPUT", info)
	again := must(w.client.Run(ctx, &pb.RunRequest{Id: w.id("script"), Force: true})).Process
	expect(again.Run == 2, again)
	set := w.wait("script", exit).Process.Output.GetValue().GetStructValue().AsMap()
	expect(len(set) == 1 && set["run"] == 2.0, set)
}

func (w *walk) aServiceIsThereOnce() {
	service := shell("echo up; exec sleep 1000")
	service.Mode, service.Service, service.Workspace = pb.Mode_MODE_SERVICE, w.name, w.name
	service.Readiness = &pb.Readiness{Probe: &pb.Readiness_OutputRegex{OutputRegex: "up"}}
	ready := &pb.WaitFor{Until: &pb.WaitFor_Ready_{Ready: &pb.WaitFor_Ready{}}}
	first := w.start("service", service, ready)
	expect(first.Wait.Met && first.Process.Ready, first)
	_, err := w.client.Start(ctx, &pb.StartRequest{Spec: service})
	expect(status.Code(err) == codes.AlreadyExists, err)
	info := detail[*errdetails.ErrorInfo](err)
	expect(info.Reason == "SERVICE_RUNNING" && info.Metadata["id"] == w.id("service"), info)
}

func (w *walk) aSelectorSparesServices() {
	worker := argv("sleep", "1000")
	worker.Workspace = w.name
	w.start("worker", worker, nil)
	work := w.killAll(&pb.Selector{Workspace: w.name})
	expect(len(work) == 1 && work[0].Id == w.id("worker"), work)
	service := w.get("service")
	expect(service.State == pb.State_STATE_RUNNING, service)
	ended := w.killAll(&pb.Selector{Workspace: w.name, Mode: pb.Mode_MODE_SERVICE})
	expect(len(ended) == 1 && ended[0].Id == service.Id && ended[0].State == pb.State_STATE_EXITED, ended)
}

func (w *walk) aTerminalShowsWhatWasTyped() {
	cat := argv("cat")
	cat.Io = &pb.Spec_Terminal{Terminal: &pb.Terminal{}}
	id := w.start("terminal", cat, nil).Process.Id
	typed := must(w.client.WriteStdin(ctx, &pb.WriteStdinRequest{
		Id:    id,
		Input: &pb.WriteStdinRequest_Text{Text: "hello"},
		Enter: true,
		Wait:  output(`hello\s+hello`),
	}))
	expect(typed.Wait.Met, typed)
	must(w.client.Resize(ctx, &pb.ResizeRequest{Id: id, Rows: 30, Cols: 100}))
	screen := must(w.client.Screen(ctx, &pb.ScreenRequest{Id: id}))
	expect(screen.Rows[0] == "hello" && screen.Rows[1] == "hello", screen)
	expect(screen.Size.Rows == 30 && screen.Size.Cols == 100, screen)
	ended := must(w.client.WriteStdin(ctx, &pb.WriteStdinRequest{
		Id:    id,
		Input: &pb.WriteStdinRequest_Keys{Keys: &pb.Keys{Names: []string{"ctrl+d"}}},
		Wait:  exit,
	})).Process
	expect(ended.Exit.GetOutcome() == pb.Outcome_OUTCOME_SUCCEEDED, ended)
}

func (w *walk) aViewCountsWhatItLeavesOut() {
	id := w.start("lines", shell("seq 1000"), exit).Process.Id
	some := must(w.client.Read(ctx, &pb.ReadRequest{Id: id, View: &pb.View{Grep: "^500$", Context: 1}}))
	expect(textOf(some.Chunks) == "499\n500\n501\n" && some.Omitted.GetLines() == 997, some)
	follower := must(w.client.Follow(ctx, &pb.FollowRequest{Id: id, View: &pb.View{Grep: "^1000$"}}))
	followed := all(follower)
	expect(textOf(chunksOf(followed)) == "1000\n", followed)
	expect(followed[len(followed)-1].GetEnd().GetOmitted().GetLines() == 999, followed)
}

func (w *walk) aCompletionWakesASleeper() {
	sleeping := must(w.client.Sleep(ctx, &pb.SleepRequest{
		Duration:     durationpb.New(10 * time.Minute),
		TickInterval: durationpb.New(5 * time.Second),
		WakeOn:       &pb.Selector{Ref: w.id("alarm")},
	}))
	begun := must(sleeping.Recv())
	expect(begun.GetTick() != nil, begun)
	alarm := shell("exit 0")
	alarm.Ref = w.id("alarm")
	w.start("alarm", alarm, nil)
	told := all(sleeping)
	done := told[len(told)-1].GetDone()
	expect(done.GetInterrupted() && done.GetEvent().GetProcessId() == w.id("alarm"), told)
}

func (w *walk) leavingEndsNothing() {
	cat := argv("cat")
	cat.Io = &pb.Spec_Pipes{Pipes: &pb.Pipes{Stdin: true}}
	id := w.start("attached", cat, nil).Process.Id
	here, leave := context.WithCancel(ctx)
	attached := must(w.client.Attach(here))
	send := func(message *pb.AttachRequest) *pb.AttachResponse {
		must(message, attached.Send(message))
		return must(attached.Recv())
	}
	first := send(&pb.AttachRequest{Message: &pb.AttachRequest_Start{Start: &pb.AttachStart{Id: id}}})
	expect(first.GetAttached().GetProcess().GetId() == id, first)
	answer := send(&pb.AttachRequest{Message: &pb.AttachRequest_Text{Text: "hello\n"}})
	expect(string(answer.GetChunk().GetData()) == "hello\n", answer)
	leave()
	process := w.get("attached")
	expect(process.State == pb.State_STATE_RUNNING, process)
	w.kill("attached")
}

func (w *walk) errorsCarryTheirDetails() {
	_, err := w.client.Get(ctx, &pb.GetRequest{Id: w.id("nobody")})
	expect(status.Code(err) == codes.NotFound, err)
	info := detail[*errdetails.ErrorInfo](err)
	expect(info.Domain == "procyard" && info.Reason == "PROCESS_NOT_FOUND", info)
	resource := detail[*errdetails.ResourceInfo](err)
	expect(resource.ResourceName == w.id("nobody"), resource)

	bad := shell("exit 0")
	bad.Labels = map[string]string{"a bad key": ""}
	bad.Timeout = durationpb.New(-time.Second)
	_, err = w.client.Start(ctx, &pb.StartRequest{Id: "../x", Spec: bad})
	expect(status.Code(err) == codes.InvalidArgument, err)
	info = detail[*errdetails.ErrorInfo](err)
	expect(info.Reason == "INVALID_FIELD", info)
	violations := detail[*errdetails.BadRequest](err).FieldViolations
	for _, name := range []string{"id", "spec.labels", "spec.timeout"} {
		named := false
		for _, violation := range violations {
			named = named || strings.HasPrefix(violation.Field, name)
		}
		expect(named, name, violations)
	}
}

func (w *walk) whatWasDeletedIsGone() {
	for _, id := range w.made {
		must(w.client.Delete(ctx, &pb.DeleteRequest{Id: id}))
		_, err := w.client.Get(ctx, &pb.GetRequest{Id: id})
		expect(status.Code(err) == codes.NotFound, id, err)
	}
}

func (w *walk) id(name string) string { return w.name + "-" + name }

func (w *walk) start(name string, spec *pb.Spec, wait *pb.WaitFor) *pb.StartResponse {
	answer := must(w.client.Start(ctx, &pb.StartRequest{Id: w.id(name), Spec: spec, Wait: wait}))
	if !answer.Existed {
		w.made = append(w.made, w.id(name))
	}
	return answer
}

func (w *walk) get(name string) *pb.Process {
	return must(w.client.Get(ctx, &pb.GetRequest{Id: w.id(name)})).Process
}

func (w *walk) wait(name string, wait *pb.WaitFor) *pb.WaitResponse {
	return must(w.client.Wait(ctx, &pb.WaitRequest{Id: w.id(name), Wait: wait}))
}

func (w *walk) kill(name string) *pb.KillResponse {
	return must(w.client.Kill(ctx, &pb.KillRequest{Target: &pb.KillRequest_Id{Id: w.id(name)}}))
}

func (w *walk) killAll(selector *pb.Selector) []*pb.Process {
	return must(w.client.Kill(ctx, &pb.KillRequest{Target: &pb.KillRequest_Selector{Selector: selector}})).Processes
}

func (w *walk) followUntil(isEnough func() bool) {
	for {
		message, err := w.follower.Recv()
		if errors.Is(err, io.EOF) {
			return
		}
		w.followed = append(w.followed, must(message, err))
		if isEnough() {
			return
		}
	}
}

// What the follower was sent so far.
func (w *walk) output() string {
	return outputOf(chunksOf(w.followed), pb.Stream_STREAM_STDOUT)
}

// The events of a watch, up to the last one that is wanted. What is to happen once the watch has
// begun, happens at its first heartbeat.
func (w *walk) watch(request *pb.WatchRequest, then func(), isLast func(*pb.Event) bool) []*pb.Event {
	broken, breakOff := context.WithCancel(ctx)
	defer breakOff()
	stream := must(w.client.Watch(broken, request))
	if then != nil {
		message := must(stream.Recv())
		expect(message.GetHeartbeat() != nil, message)
		then()
	}
	var found []*pb.Event
	for {
		message, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return found
		}
		if event := must(message, err).GetEvent(); event != nil {
			found = append(found, event)
			if isLast(event) {
				return found
			}
		}
	}
}

// The messages of a stream, to its end.
func all[T any](stream grpc.ServerStreamingClient[T]) []*T {
	var messages []*T
	for {
		message, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return messages
		}
		messages = append(messages, must(message, err))
	}
}

func shell(line string) *pb.Spec { return &pb.Spec{Program: &pb.Spec_Shell{Shell: line}} }

func argv(args ...string) *pb.Spec {
	return &pb.Spec{Program: &pb.Spec_Argv{Argv: &pb.Argv{Args: args}}}
}

func output(regex string) *pb.WaitFor {
	return &pb.WaitFor{Until: &pb.WaitFor_Output_{Output: &pb.WaitFor_Output{Regex: regex}}}
}

func chunksOf(messages []*pb.FollowResponse) []*pb.Chunk {
	var chunks []*pb.Chunk
	for _, message := range messages {
		chunks = append(chunks, message.GetChunk())
	}
	return chunks
}

func outputOf(chunks []*pb.Chunk, stream pb.Stream) string {
	var those []*pb.Chunk
	for _, chunk := range chunks {
		if chunk.GetStream() == stream {
			those = append(those, chunk)
		}
	}
	return textOf(those)
}

func textOf(chunks []*pb.Chunk) string {
	var data []byte
	for _, chunk := range chunks {
		data = append(data, chunk.GetData()...)
	}
	return string(data)
}

// The detail of this type that an error must carry.
func detail[T proto.Message](err error) T {
	for _, found := range status.Convert(err).Details() {
		if found, ok := found.(T); ok {
			return found
		}
	}
	var none T
	log.Output(2, fmt.Sprintf("%v carries no %T", err, none))
	os.Exit(1)
	return none
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Output(2, err.Error())
		os.Exit(1)
	}
	return value
}

func expect(ok bool, what ...any) {
	if !ok {
		log.Output(2, fmt.Sprintln(append([]any{"unexpected:"}, what...)...))
		os.Exit(1)
	}
}
