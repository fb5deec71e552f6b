package deviceplugin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Line is the begin of a call, or its end if it has a code. A line without a call is a start of the plugin.
type Line struct {
	Time time.Time `json:"time"`
	// Socket is the name of the plugin's socket, and PID that of its process.
	Socket string `json:"socket"`
	PID    int    `json:"pid"`
	Number int    `json:"number,omitempty"`
	Method string `json:"method,omitempty"`
	// Devices are those of Allocate and PreStartContainer, for each container, or those that GetPreferredAllocation may
	// choose from.
	Devices [][]string `json:"devices,omitempty"`
	Code    string     `json:"code,omitempty"`
	Message string     `json:"message,omitempty"`
}

// Ends reports whether the line is the end of a call.
func (l Line) Ends() bool { return l.Code != "" }

// OK reports whether the line is the end of a call that has succeeded.
func (l Line) OK() bool { return l.Code == codes.OK.String() }

// ReadCalls returns the lines of a file, from its beginning. There are none if there is no file.
func ReadCalls(path string) ([]Line, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read calls of a device plugin: %w", err)
	}
	whole := text[:bytes.LastIndexByte(text, '\n')+1] // the last one may be half written
	var lines []Line
	for part := range bytes.Lines(whole) {
		var l Line
		if err := json.Unmarshal(part, &l); err != nil {
			return nil, fmt.Errorf("read calls of a device plugin: %s: %w: %s", path, err, part)
		}
		lines = append(lines, l)
	}
	return lines, nil
}

// look is how often the plan is read again while something waits for a change of it.
const look = 20 * time.Millisecond

// watcher writes what is called, and applies the rules.
type watcher struct {
	plan   func() (*Plan, error)
	socket string
	exit   func()

	mu     sync.Mutex
	file   *os.File // nil: nothing is written
	number int
}

func newWatcher(path, socket string, plan func() (*Plan, error)) (*watcher, error) {
	w := &watcher{plan: plan, socket: socket, exit: func() { os.Exit(3) }}
	if path == "" {
		return w, nil
	}
	lines, err := ReadCalls(path)
	if err != nil {
		return nil, err
	}
	for _, l := range lines {
		w.number = max(w.number, l.Number)
	}
	if w.file, err = os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
		return nil, fmt.Errorf("write calls: %w", err)
	}
	w.write(Line{})
	return w, nil
}

func (w *watcher) close() error {
	if w.file == nil {
		return nil
	}
	return w.file.Close()
}

// call has a call done as the rules say, and writes it. The work gets the rule that changes its answer, or nil.
func (w *watcher) call(ctx context.Context, l Line, work func(*Rule) error) error {
	l.Number = w.begin(l)
	err := w.apply(ctx, l, false)
	if err == nil {
		var p *Plan
		if p, err = w.plan(); err == nil {
			err = work(p.rule(l.Method, l.Number, false))
		}
	}
	if err == nil {
		err = w.apply(ctx, l, true)
	}
	l.Code, l.Message = status.Code(err).String(), status.Convert(err).Message()
	w.write(l)
	return err
}

// apply does what the rules say of the call.
func (w *watcher) apply(ctx context.Context, l Line, after bool) error {
	late := false
	for {
		p, err := w.plan()
		if err != nil {
			return status.Error(codes.Internal, err.Error())
		}
		r := p.rule(l.Method, l.Number, after)
		switch {
		case r == nil:
			return nil
		case r.Exit:
			w.exit()
		case !late && r.Milliseconds > 0:
			time.Sleep(time.Duration(r.Milliseconds) * time.Millisecond)
			late = true
		case !r.Hold && r.Code != codes.OK:
			return status.Error(r.Code, r.Message)
		case !r.Hold:
			return nil
		}
		select {
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-time.After(look):
		}
	}
}

func (w *watcher) begin(l Line) (number int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.number++
	l.Number = w.number
	w.writeLocked(l)
	return l.Number
}

func (w *watcher) write(l Line) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writeLocked(l)
}

func (w *watcher) writeLocked(l Line) {
	if w.file == nil {
		return
	}
	l.Time, l.Socket, l.PID = time.Now(), w.socket, os.Getpid()
	text, err := json.Marshal(l)
	if err == nil {
		_, err = w.file.Write(append(text, '\n'))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "device-plugin: a call is not written:", err)
	}
}
