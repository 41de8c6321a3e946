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
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "procyard/walk/generated/procyard/v1"
)

// Two sleeps, and a word when both of them are executed.
const tree = "for n in 1 2; do sleep 1000 & until grep -q sleep /proc/$!/comm; do :; done; done; echo up; wait"

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
	connection := must(grpc.NewClient("unix://"+os.Getenv("PROCYARD_SOCKET"),
		grpc.WithTransportCredentials(insecure.NewCredentials())))
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
		{"errors carry their details", w.errorsCarryTheirDetails},
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
	cat := &pb.Spec{
		Program: &pb.Spec_Argv{Argv: &pb.Argv{Args: []string{"/bin/cat"}}},
		Io:      &pb.Spec_Pipes{Pipes: &pb.Pipes{Stdin: true}},
	}
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
	met := must(w.client.Wait(ctx, &pb.WaitRequest{Id: w.id("cat"), Wait: output("hello")})).Wait
	expect(met.Met && !met.TimedOut && met.Match.GetText() == "hello" && met.Match.GetSeq() > 0, met)
	soon := &pb.WaitFor{Until: exit.Until, Timeout: durationpb.New(100 * time.Millisecond)}
	late := must(w.client.Wait(ctx, &pb.WaitRequest{Id: w.id("cat"), Wait: soon})).Wait
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
	answer := must(w.client.Kill(ctx, &pb.KillRequest{Target: &pb.KillRequest_Id{Id: w.id("tree")}}))
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
	var chunks []*pb.Chunk
	for _, message := range w.followed {
		chunks = append(chunks, message.GetChunk())
	}
	return outputOf(chunks, pb.Stream_STREAM_STDOUT)
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

func shell(line string) *pb.Spec { return &pb.Spec{Program: &pb.Spec_Shell{Shell: line}} }

func output(regex string) *pb.WaitFor {
	return &pb.WaitFor{Until: &pb.WaitFor_Output_{Output: &pb.WaitFor_Output{Regex: regex}}}
}

func outputOf(chunks []*pb.Chunk, stream pb.Stream) string {
	var data []byte
	for _, chunk := range chunks {
		if chunk.GetStream() == stream {
			data = append(data, chunk.Data...)
		}
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
