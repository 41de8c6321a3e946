// The step of the walk in which the server is killed: whoever uses resuming does not notice.

package main

import (
	"fmt"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"

	pb "procyard/walk/generated/procyard/v1"
	"procyard/walk/resuming"
)

// How often the server is killed, and how many processes are started meanwhile each time.
const kills, starts = 5, 10

type restarts struct {
	*walk
	scope *pb.Selector
	// A file that is there when the last server has died, and one in which processes say who they are.
	over, log string
	// Guards made, and begun.
	guard sync.Mutex
	begun []string
}

func (w *walk) noRestartLosesOrDoublesAnything() {
	if os.Getenv("PROCYARD_KEEPER") == "" {
		fmt.Println("   skipped: PROCYARD_KEEPER does not tell whose server to kill")
		return
	}
	place := must(os.MkdirTemp("", ""))
	defer os.RemoveAll(place)
	r := &restarts{
		walk:  w,
		scope: &pb.Selector{Workspace: w.id("restarts")},
		over:  filepath.Join(place, "over"),
		log:   filepath.Join(place, "log"),
	}
	watching := must(resuming.Watch(ctx, w.client, r.scope, nil))
	var told []*pb.Event
	var work, watcher sync.WaitGroup
	watcher.Go(func() { told = r.told(watching) })
	work.Go(func() { r.follow("printed", "\n", &pb.Spec{}) })
	work.Go(func() { r.follow("drawn", "\r\n", &pb.Spec{Io: &pb.Spec_Terminal{Terminal: &pb.Terminal{}}}) })
	work.Go(r.typeUntilOver)
	work.Go(r.startWhileServersDie)
	work.Wait()
	r.begin("last", shell("exit 0"))
	watcher.Wait()
	r.checkEvents(told)
}

func (r *restarts) begin(name string, spec *pb.Spec) string {
	spec.Workspace = r.scope.Workspace
	must(resuming.Start(ctx, r.client, r.id(name), spec))
	r.guard.Lock()
	defer r.guard.Unlock()
	r.made = append(r.made, r.id(name))
	r.begun = append(r.begun, r.id(name))
	return r.id(name)
}

// All that a process prints. Every chunk comes once, none is missing, and the end is last.
func (r *restarts) printed(id string) string {
	var text strings.Builder
	next := uint64(1)
	for message, err := range resuming.Follow(ctx, r.client, id, nil) {
		if process := must(message, err).GetEnd().GetProcess(); process != nil {
			expect(process.Exit.Outcome == pb.Outcome_OUTCOME_SUCCEEDED, message)
			expect(process.Transcript.TotalBytes == uint64(text.Len()), message)
			return text.String()
		}
		expect(message.GetChunk().GetSeq() == next, next, message)
		next++
		text.Write(message.GetChunk().Data)
	}
	expect(false, id, "has no end")
	return ""
}

// Every line of one who prints all the time comes once, and in order.
func (r *restarts) follow(name, newline string, spec *pb.Spec) {
	printer := "n=0; until [ -e " + r.over + " ]; do echo $n; n=$((n + 1)); sleep 0.01; done"
	spec.Program = shell(printer).Program
	text := r.printed(r.begin(name, spec))
	var lines strings.Builder
	for n := range strings.Count(text, "\n") {
		fmt.Fprint(&lines, n, newline)
	}
	expect(text == lines.String(), text)
}

// Every byte that is typed comes back once.
func (r *restarts) typeUntilOver() {
	cat := argv("cat")
	cat.Io = &pb.Spec_Pipes{Pipes: &pb.Pipes{Stdin: true}}
	id := r.begin("typed", cat)
	var typed []byte
	for !exists(r.over) {
		line := fmt.Appendln(nil, len(typed))
		next := must(resuming.Write(ctx, r.client, id, uint64(len(typed)), line))
		typed = append(typed, line...)
		expect(next == uint64(len(typed)), next, string(typed))
	}
	expect(resuming.Close(ctx, r.client, id, uint64(len(typed))) == nil)
	text := r.printed(id)
	expect(text == string(typed), text)
}

// Every id is one process, which says so in a file of all.
func (r *restarts) startWhileServersDie() {
	var started strings.Builder
	for kill := range kills {
		killing := exec.Command("../kill-server")
		expect(killing.Start() == nil)
		for number := range starts {
			name := fmt.Sprintf("short-%d-%d", kill, number)
			id := r.begin(name, shell("echo $PROCYARD_ID | tee -a "+r.log))
			fmt.Fprintln(&started, id)
			text := r.printed(id)
			expect(text == id+"\n", text)
		}
		expect(killing.Wait() == nil)
	}
	expect(os.WriteFile(r.over, nil, 0o600) == nil)
	logged := string(must(os.ReadFile(r.log)))
	expect(logged == started.String(), logged, started.String())
}

// All events, until the last process has completed.
func (r *restarts) told(watching iter.Seq2[*pb.WatchResponse, error]) []*pb.Event {
	var told []*pb.Event
	for message, err := range watching {
		event := must(message, err).GetEvent()
		told = append(told, event)
		if event.GetProcessId() == r.id("last") && event.Kind == pb.Kind_KIND_COMPLETED {
			break
		}
	}
	return told
}

func (r *restarts) checkEvents(told []*pb.Event) {
	kinds := map[string]string{}
	for _, event := range told {
		kinds[event.ProcessId] += event.Kind.String() + " "
	}
	for _, id := range r.begun {
		expect(kinds[id] == "KIND_STARTED KIND_COMPLETED ", id, kinds[id])
	}
	all := &pb.WatchRequest{Selector: r.scope, SinceEvent: proto.Uint64(0), ReplayOnly: true}
	kept := r.watch(all, nil, func(*pb.Event) bool { return false })
	expect(len(told) == len(kept), told, kept)
	for i, event := range told {
		expect(event.Seq == kept[i].Seq, event, kept[i])
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
