package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// line is what is written of a call at its begin, and again with a code at its end. A start of the driver is a line
// without a call.
type line struct {
	Time   time.Time `json:"time"`
	Call   int       `json:"call,omitempty"`
	Method string    `json:"method,omitempty"`
	// Number counts the calls of the node's service, from 1 on; those of a controller have none. It goes on where an
	// earlier process has ended.
	Number   int               `json:"number,omitempty"`
	Volume   string            `json:"volume,omitempty"`
	Staging  string            `json:"staging,omitempty"`
	Target   string            `json:"target,omitempty"`
	ReadOnly bool              `json:"readOnly,omitempty"`
	Context  map[string]string `json:"context,omitempty"`
	Publish  map[string]string `json:"publish,omitempty"`
	// Secrets are the names of what is secret.
	Secrets []string `json:"secrets,omitempty"`
	// Gone is a line of its own: the call's caller does not wait any more.
	Gone    bool   `json:"gone,omitempty"`
	Code    string `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
}

// rule is for the calls that have its method, its volume and its number, of which each may be empty.
type rule struct {
	Method string `json:"method"`
	Volume string `json:"volume"`
	Number int    `json:"number"`
	// After: it applies when the work is done, and not before.
	After bool `json:"after"`
	// Milliseconds is how late the call is, also if its caller has gone.
	Milliseconds int `json:"milliseconds"`
	// Hold keeps the call until the rule is taken back, or its caller has gone.
	Hold bool `json:"hold"`
	// Exit ends the driver's process.
	Exit bool `json:"exit"`
	// Code and Message are the error of the call.
	Code    codes.Code `json:"code"`
	Message string     `json:"message"`
}

// watcher writes what is called, and applies the rules.
type watcher struct {
	rulesFile string

	mu   sync.Mutex
	file *os.File
	// calls is the count of all calls, and number that of the node's.
	calls, number int
	// pending are the volumes of which the node has a call.
	pending map[string]bool
}

func newWatcher(calls, rules string) (*watcher, error) {
	w := &watcher{rulesFile: rules, pending: map[string]bool{}}
	if calls == "" {
		return w, nil
	}
	text, err := os.ReadFile(calls)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for text := range strings.Lines(string(text)) {
		var l line
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			return nil, fmt.Errorf("%s: %w", calls, err)
		}
		w.calls, w.number = max(w.calls, l.Call), max(w.number, l.Number)
	}
	w.file, err = os.OpenFile(calls, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		w.write(line{})
	}
	return w, err
}

func (w *watcher) close() {
	if w.file != nil {
		_ = w.file.Close()
	}
}

// call is around each call.
func (w *watcher) call(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any,
	error,
) {
	if strings.Contains(info.FullMethod, ".Identity/") {
		return handle(ctx, request)
	}
	l := describe(path.Base(info.FullMethod), request)
	w.begin(&l, strings.Contains(info.FullMethod, ".Node/"))
	stop := context.AfterFunc(ctx, func() { w.write(line{Call: l.Call, Method: l.Method, Volume: l.Volume, Gone: true}) })
	defer stop()
	answer, err := w.alone(l, func() (any, error) {
		return w.ruled(ctx, l, func() (any, error) { return handle(ctx, request) })
	})
	l.Code, l.Message = status.Code(err).String(), status.Convert(err).Message()
	w.write(l)
	return answer, err
}

// alone refuses a call of the node for a volume that has one. A caller may have given that one up, and yet it is done.
func (w *watcher) alone(l line, work func() (any, error)) (any, error) {
	if l.Number == 0 || l.Volume == "" {
		return work()
	}
	w.mu.Lock()
	taken := w.pending[l.Volume]
	w.pending[l.Volume] = true
	w.mu.Unlock()
	if taken {
		return nil, status.Errorf(codes.Aborted, "an operation on volume %q is under way", l.Volume)
	}
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.pending, l.Volume)
	}()
	return work()
}

func (w *watcher) ruled(ctx context.Context, l line, work func() (any, error)) (any, error) {
	if err := w.apply(ctx, l, false); err != nil {
		return nil, err
	}
	answer, err := work()
	if late := w.apply(ctx, l, true); late != nil {
		return nil, late
	}
	return answer, err
}

// apply does what the rules say of the call.
func (w *watcher) apply(ctx context.Context, l line, after bool) error {
	const look = 10 * time.Millisecond
	late := false
	for {
		r, err := w.rule(l, after)
		switch {
		case err != nil:
			return status.Error(codes.Internal, err.Error())
		case r == nil:
			return nil
		case r.Exit:
			os.Exit(3)
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

// rule returns the first rule of the call.
func (w *watcher) rule(l line, after bool) (*rule, error) {
	if w.rulesFile == "" {
		return nil, nil
	}
	text, err := os.ReadFile(w.rulesFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var rules []rule
	if err := json.Unmarshal(text, &rules); err != nil {
		return nil, fmt.Errorf("%s: %w", w.rulesFile, err)
	}
	for _, r := range rules {
		if r.After == after && (r.Method == "" || r.Method == l.Method) && (r.Volume == "" || r.Volume == l.Volume) &&
			(r.Number == 0 || r.Number == l.Number) {
			return &r, nil
		}
	}
	return nil, nil
}

func (w *watcher) begin(l *line, ofNode bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls++
	l.Call = w.calls
	if ofNode {
		w.number++
		l.Number = w.number
	}
	w.writeLocked(*l)
}

func (w *watcher) write(l line) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writeLocked(l)
}

func (w *watcher) writeLocked(l line) {
	if w.file == nil {
		return
	}
	l.Time = time.Now()
	text, err := json.Marshal(l)
	if err == nil {
		_, err = w.file.Write(append(text, '\n'))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "csidriver: a call is not written:", err)
	}
}

// describe is a call as its line has it.
func describe(method string, request any) line {
	l := line{Method: method}
	if r, ok := request.(interface{ GetVolumeId() string }); ok {
		l.Volume = r.GetVolumeId()
	}
	if r, ok := request.(interface{ GetStagingTargetPath() string }); ok {
		l.Staging = r.GetStagingTargetPath()
	}
	if r, ok := request.(interface{ GetTargetPath() string }); ok {
		l.Target = r.GetTargetPath()
	}
	if r, ok := request.(interface{ GetReadonly() bool }); ok {
		l.ReadOnly = r.GetReadonly()
	}
	if r, ok := request.(interface{ GetVolumeContext() map[string]string }); ok {
		l.Context = r.GetVolumeContext()
	}
	if r, ok := request.(interface{ GetPublishContext() map[string]string }); ok {
		l.Publish = r.GetPublishContext()
	}
	if r, ok := request.(interface{ GetSecrets() map[string]string }); ok {
		l.Secrets = slices.Sorted(maps.Keys(r.GetSecrets()))
	}
	if r, ok := request.(*csi.CreateVolumeRequest); ok {
		l.Volume = idOf(r.GetName())
	}
	return l
}
