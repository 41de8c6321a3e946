// Package resuming has calls that go on by themselves when the server is replaced. Made to be copied.
//
// The server may be replaced at any moment: by an upgrade, or because it died. Processes run on, and
// who connects meanwhile waits, since the listening sockets stay open. What breaks is a connection,
// with every call on it, and nobody can tell which of them had been obeyed.
//
// So what may be done twice is done again: a stream goes on after the last number that came, a write
// is repeated at its offset, a start under its id, and by Call any of Get, List, Read, Wait, Kill,
// Resize, Screen, GetServerInfo, and Delete with allow_missing.
//
// Never repeated is what would happen twice: a start without an id, a write without an offset, Run,
// Signal, and what was typed in an Attach. Ask with Get what has become of those. Sleep would begin
// anew.
package resuming

import (
	"context"
	"errors"
	"io"
	"iter"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	pb "procyard/walk/generated/procyard/v1"
)

// Client is what is called.
type Client = pb.ProcessServiceClient

const (
	// How long a call may take in all, and a stream be without a server.
	patience = time.Minute
	// Between two attempts.
	firstPause, longestPause = 50 * time.Millisecond, time.Second
)

// Connect makes a connection that is tried as often as we try; its own first pause would be a second.
func Connect(address string) (*grpc.ClientConn, error) {
	return grpc.NewClient(address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: firstPause, Multiplier: 2, Jitter: 0.2, MaxDelay: longestPause},
			// Without it, one that waits for the next server would be given up after a pause.
			MinConnectTimeout: 20 * time.Second,
		}))
}

// Start starts a process. Existed in the answer may also mean that an earlier attempt has started it.
func Start(ctx context.Context, client Client, id string, spec *pb.Spec) (*pb.StartResponse, error) {
	if id == "" {
		return nil, errors.New("without an id, a second attempt would be a second process")
	}
	return Call(ctx, client.Start, &pb.StartRequest{Id: id, Spec: spec})
}

// Write types into a process whose only writer this is, and returns the offset of the next write.
func Write(ctx context.Context, client Client, id string, offset uint64, data []byte) (uint64, error) {
	answer, err := Call(ctx, client.WriteStdin, &pb.WriteStdinRequest{
		Id:     id,
		Input:  &pb.WriteStdinRequest_Data{Data: data},
		Offset: &offset,
	})
	return answer.GetAcceptedBytes(), err
}

// Close ends the input of a process at an offset.
func Close(ctx context.Context, client Client, id string, offset uint64) error {
	_, err := Call(ctx, client.WriteStdin, &pb.WriteStdinRequest{Id: id, Offset: &offset, Eof: true})
	return err
}

// Follow yields messages with a chunk, a gap, or at last the end of a transcript, each once; since is
// the first chunk that is wanted, nil the oldest that is kept. An error is the last that it yields.
func Follow(
	ctx context.Context, client Client, id string, since *uint64,
) iter.Seq2[*pb.FollowResponse, error] {
	// Not with a view: there a chunk may come in pieces that have its number.
	open := func(ctx context.Context) (grpc.ServerStreamingClient[pb.FollowResponse], error) {
		return client.Follow(ctx, &pb.FollowRequest{Id: id, SinceSeq: since})
	}
	return func(yield func(*pb.FollowResponse, error) bool) {
		var next uint64
		for message, err := range resumed(ctx, open) {
			switch it := message.GetMessage().(type) {
			case *pb.FollowResponse_Heartbeat:
				since = &it.Heartbeat.Seq
				continue
			case *pb.FollowResponse_Chunk:
				next = it.Chunk.Seq + 1
			case *pb.FollowResponse_Gap:
				next = it.Gap.ToSeq + 1
			}
			since = &next
			if !yield(message, err) || message.GetEnd() != nil {
				return
			}
		}
	}
}

// Watch yields messages with an event or a gap, each once: those after the event since, or with nil from
// now on. An error is the last that it yields.
func Watch(
	ctx context.Context, client Client, selector *pb.Selector, since *uint64,
) (iter.Seq2[*pb.WatchResponse, error], error) {
	if since == nil {
		// Now, not when the first one is asked for, nor when a broken stream is begun again.
		info, err := Call(ctx, client.GetServerInfo, &pb.GetServerInfoRequest{})
		if err != nil {
			return nil, err
		}
		since = &info.Counts.LatestEvent
	}
	open := func(ctx context.Context) (grpc.ServerStreamingClient[pb.WatchResponse], error) {
		return client.Watch(ctx, &pb.WatchRequest{Selector: selector, SinceEvent: since})
	}
	return func(yield func(*pb.WatchResponse, error) bool) {
		for message, err := range resumed(ctx, open) {
			switch it := message.GetMessage().(type) {
			case *pb.WatchResponse_Heartbeat:
				since = &it.Heartbeat.Seq
				continue
			case *pb.WatchResponse_Event:
				since = &it.Event.Seq
			case *pb.WatchResponse_Gap:
				since = &it.Gap.ToSeq
			}
			if !yield(message, err) {
				return
			}
		}
	}, nil
}

// Call makes a call that may be made twice.
func Call[Q, A any](
	ctx context.Context, method func(context.Context, *Q, ...grpc.CallOption) (*A, error), request *Q,
) (*A, error) {
	attempts := newAttempts()
	ctx, cancel := context.WithDeadline(ctx, attempts.until)
	defer cancel()
	for {
		// Waits for a connection instead of failing for want of one.
		answer, err := method(ctx, request, grpc.WaitForReady(true))
		if err == nil {
			return answer, nil
		}
		if err := attempts.pauseAfter(ctx, err); err != nil {
			return nil, err
		}
	}
}

// The messages of a stream and of those that are begun in its place when it breaks.
func resumed[M any](
	ctx context.Context, open func(context.Context) (grpc.ServerStreamingClient[M], error),
) iter.Seq2[*M, error] {
	return func(yield func(*M, error) bool) {
		ctx, leave := context.WithCancel(ctx)
		defer leave()
		var attempts *attempts
		for {
			// A stream has no deadline, so it does not wait for a connection for ever either.
			stream, err := open(ctx)
			for err == nil {
				var message *M
				if message, err = stream.Recv(); err == nil {
					attempts = nil
					if !yield(message, nil) {
						return
					}
				}
			}
			if errors.Is(err, io.EOF) {
				return
			}
			if attempts == nil {
				attempts = newAttempts()
			}
			if err := attempts.pauseAfter(ctx, err); err != nil {
				yield(nil, err)
				return
			}
		}
	}
}

type attempts struct {
	until time.Time
	pause time.Duration
}

func newAttempts() *attempts { return &attempts{until: time.Now().Add(patience), pause: firstPause} }

// Pauses after a connection was lost; any other error, and the last one, is the caller's.
func (a *attempts) pauseAfter(ctx context.Context, err error) error {
	if status.Code(err) != codes.Unavailable || time.Until(a.until) <= a.pause {
		return err
	}
	select {
	case <-ctx.Done():
		return err
	case <-time.After(a.pause):
	}
	a.pause = min(2*a.pause, longestPause)
	return nil
}
