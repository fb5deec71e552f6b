package childpool

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"runtime/debug"
	"sync/atomic"

	"github.com/microlet/microlet/services/internal/childprocess"
)

// childMemory is the heap at which a child collects garbage more eagerly.
const childMemory = 16 << 20

// Program is this binary as a child of that name, which runs the operations of a table. env adds to its environment.
// operations is called by the thread that runs them, before the process is closed to others.
func Program(name string, operations func() Table, env ...string) *childprocess.Program {
	return &childprocess.Program{
		Name: name,
		Env:  append([]string{"GOMAXPROCS=1", "GOGC=50"}, env...),
		Main: func(socket *os.File) error {
			debug.SetMemoryLimit(childMemory)
			table := operations()
			if err := childprocess.KeepPrivate(); err != nil {
				return err
			}
			// A reader of the descriptor itself would keep the only processor of the Go runtime from the operation for a
			// while.
			conn, err := net.FileConn(socket)
			if err != nil {
				return err
			}
			return Serve(conn, table)
		},
	}
}

// leftKey is the key of what Leave sets in an operation's context.
type leftKey struct{}

// Leave is for an operation that returns while one of its threads still waits in the kernel. Its child gets no further
// call: it is killed, and counts as one that hangs until the kernel lets it end.
func Leave(ctx context.Context) {
	if left, ok := ctx.Value(leftKey{}).(*atomic.Bool); ok {
		left.Store(true)
	}
}

// Serve runs operations one by one, until the other end asks for no more. That ends the operation's context.
func Serve(conn io.ReadWriter, operations Table) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	requests, failed := make(chan request), make(chan error, 1)
	in := bufio.NewReader(conn)
	go func() { // ends with the process, which ends with Serve
		for {
			var q request
			if err := readMessage(in, &q); err != nil {
				cancel()
				failed <- err
				return
			}
			select {
			case requests <- q:
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		select {
		case q := <-requests:
			within, done := context.WithTimeout(ctx, q.Within)
			left := &atomic.Bool{}
			a := answerOf(operations.Run(context.WithValue(reporting(within, conn), leftKey{}, left), q.Call))
			a.Left = left.Load()
			done()
			if err := writeMessage(conn, a); err != nil {
				return err
			}
		case err := <-failed:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}
