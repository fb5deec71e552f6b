package delivery

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/tools/record/util"

	"github.com/microlet/microlet/services/internal/logkey"
)

const (
	// callTimeout bounds one call to the apiserver.
	callTimeout = 10 * time.Second
	// maxCalls bounds the calls under way at one time, apart from those that have taken slowCall: what hangs keeps
	// no other call waiting.
	maxCalls = 16
	slowCall = time.Second
	// deliverMin and deliverMax are the first and the longest pause between two attempts while the apiserver is not
	// reached.
	deliverMin = 50 * time.Millisecond
	deliverMax = 5 * time.Second
)

// kind says what an attempt came to.
type kind int

const (
	// answered: the apiserver has accepted the Event, or refused it for good.
	answered kind = iota
	// refused: the apiserver works, and does not take this Event now.
	refused
	// unreachable: the apiserver takes nothing.
	unreachable
)

// answer is what an attempt came to.
type answer struct {
	kind    kind
	outcome string
	stored  *corev1.Event // nil unless it was accepted
	err     error
}

// attempt makes one attempt to deliver.
func (d *Delivery) attempt(ctx context.Context, result *record.EventCorrelateResult) answer {
	select {
	case d.calls <- struct{}{}:
	case <-ctx.Done():
		return answer{kind: unreachable, err: ctx.Err()}
	}
	release := sync.OnceFunc(func() { <-d.calls })
	defer release()
	defer time.AfterFunc(slowCall, release).Stop()

	began, others := time.Now(), d.reach.answered()
	stored, outcome, err := d.write(ctx, result)
	switch {
	case err == nil:
		d.reach.answer()
		return answer{answered, outcome, stored, nil}
	case final(err):
		d.reach.answer()
		d.logRejected(result.Event, err)
		return answer{answered, "rejected", nil, err}
	case aboutThis(err):
		return answer{kind: refused, err: err}
	case isClosed(others):
		return answer{kind: refused, err: err}
	case d.answered().After(began):
		d.reach.answer()
		return answer{kind: refused, err: err}
	}
	if ctx.Err() == nil && d.reach.silent() {
		d.log.Warn("the apiserver takes no events, which wait", logkey.Err, err)
	}
	return answer{kind: unreachable, err: err}
}

// write creates the Event, or patches its count if it was seen before.
func (d *Delivery) write(ctx context.Context, result *record.EventCorrelateResult) (*corev1.Event, string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if result.Event.Count > 1 && result.Patch != nil {
		stored, err := d.sink.Patch(ctx, result.Event, result.Patch)
		if !util.IsKeyNotFoundError(err) {
			return stored, "patched", err
		}
		// It has expired at the apiserver.
	}
	event := result.Event.DeepCopy()
	event.ResourceVersion = ""
	stored, err := d.sink.Create(ctx, event)
	return stored, "created", err
}

func (d *Delivery) logRejected(event *corev1.Event, err error) {
	if apierrors.IsAlreadyExists(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		d.log.Debug("the apiserver refused an event", "event", about(event), logkey.Err, err)
		return
	}
	d.log.Error("the apiserver refused an event", "event", about(event), logkey.Err, err)
}

// statusCode is the code of an apiserver's answer; 0 if there was none.
func statusCode(err error) int32 {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return 0
	}
	return status.Status().Code
}

// final reports whether trying again cannot help: the apiserver has understood the request and said no. It
// may come to its senses after a server error, when it has less to do, or when the credentials are renewed.
func final(err error) bool {
	var construction *restclient.RequestConstructionError
	if errors.As(err, &construction) {
		return true
	}
	switch code := statusCode(err); code {
	case http.StatusUnauthorized, http.StatusRequestTimeout, http.StatusTooManyRequests:
		return false
	default:
		return code >= 400 && code < 500
	}
}

// aboutThis reports whether an error that is not final is about the one Event, as when a webhook fails. One about all
// requests is as if the apiserver were away.
func aboutThis(err error) bool {
	switch statusCode(err) {
	case 0, http.StatusUnauthorized, http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return false
	default:
		return true
	}
}

// reach knows whether the apiserver takes Events. While it does not, one attempt after the other is made, not all at
// once.
type reach struct {
	scout chan struct{} // held by the one that tries

	mu       sync.Mutex
	again    chan struct{} // closed at the next answer
	failures int           // attempts since the last
}

func newReach() *reach { return &reach{scout: make(chan struct{}, 1), again: make(chan struct{})} }

// answered is closed when the apiserver answers an attempt.
func (r *reach) answered() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.again
}

// answer says that an attempt was answered.
func (r *reach) answer() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = 0
	close(r.again)
	r.again = make(chan struct{})
}

// silent says that an attempt was not answered, and returns true for the first since the last answer.
func (r *reach) silent() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures++
	return r.failures == 1
}

// wait returns when an attempt may be made: the apiserver answers, or it is this one's turn to find out. It returns
// false when ctx ended before.
func (r *reach) wait(ctx context.Context) bool {
	again := r.answered()
	select {
	case <-ctx.Done():
		return false
	case <-again:
		return true
	case r.scout <- struct{}{}:
	}
	defer func() { <-r.scout }()
	r.mu.Lock()
	pause := min(deliverMin<<min(max(r.failures-1, 0), 10), deliverMax)
	r.mu.Unlock()
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-again:
	case <-t.C:
	}
	return true
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
