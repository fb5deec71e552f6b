package objects

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"
)

// errorLines counts what is logged as an error.
type errorLines struct {
	slog.Handler
	mu    sync.Mutex
	lines []string
}

func (e *errorLines) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelInfo }

func (e *errorLines) WithAttrs([]slog.Attr) slog.Handler { return e }

func (e *errorLines) WithGroup(string) slog.Handler { return e }

func (e *errorLines) Handle(_ context.Context, r slog.Record) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if r.Level >= slog.LevelError {
		text := r.Message
		r.Attrs(func(a slog.Attr) bool { text += " " + a.String(); return true })
		e.lines = append(e.lines, text)
	}
	return nil
}

func (e *errorLines) taken() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	lines := e.lines
	e.lines = nil
	return lines
}

// TestAMomentOfForbiddenIsNoError: the apiserver does not know a new pod at once, and forgets one that ends; a node
// that may never read is reported.
func TestAMomentOfForbiddenIsNoError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &errorLines{}
		klog.SetSlogLogger(slog.New(log))
		defer klog.ClearLogger()
		// The second handler slows errors down by the time since the last one, and that was none of virtual time.
		handlers := utilruntime.ErrorHandlers
		utilruntime.ErrorHandlers = handlers[:1]
		defer func() { utilruntime.ErrorHandlers = handlers }()
		var mu sync.Mutex
		var answer error
		refuse := func(err error) {
			mu.Lock()
			defer mu.Unlock()
			answer = err
		}
		client := fake.NewClientset(versioned(configMap("a", "1"), "1"))
		refused := func() (bool, error) {
			mu.Lock()
			defer mu.Unlock()
			return answer != nil, answer
		}
		client.PrependReactor("list", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
			yes, err := refused()
			return yes, nil, err
		})
		client.PrependWatchReactor("configmaps", func(clienttesting.Action) (bool, watch.Interface, error) {
			yes, err := refused()
			return yes, nil, err
		})
		s, _ := watching(t, client)
		forbidden := apierrors.NewForbidden(v1.Resource("configmaps"), "a", nil)

		refuse(forbidden)
		s.Register(naming("p", "a"))
		time.Sleep(12 * time.Second)
		if lines := log.taken(); len(lines) > 0 {
			t.Errorf("after a moment: %q", lines)
		}
		time.Sleep(time.Minute)
		if lines := log.taken(); len(lines) == 0 || !strings.Contains(lines[0], "forbidden") {
			t.Errorf("after a minute: %q", lines)
		}
		s.Unregister("p")
		time.Sleep(time.Minute)
		log.taken()

		refuse(apierrors.NewInternalError(context.DeadlineExceeded))
		s.Register(naming("q", "a"))
		time.Sleep(12 * time.Second)
		if lines := log.taken(); len(lines) == 0 {
			t.Error("what is no matter of permission is not reported")
		}
		s.Unregister("q")
		time.Sleep(time.Minute)
		if lines := log.taken(); len(lines) > 0 {
			t.Errorf("of a watch that has ended: %q", lines)
		}
	})
}
