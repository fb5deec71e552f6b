package record

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// Entry is one change of one object.
type Entry struct {
	// Revision is the object's resource version after the change.
	Revision int64
	// At is when the recorder saw it. Objects that were there from the start have the start's time.
	At time.Time
	// Key of the object in etcd.
	Key string
	// Deleted: the object is gone; Object is what it was before.
	Deleted bool
	// Object is a *corev1.Pod, *corev1.Node, *corev1.Event or *coordinationv1.Lease. It is shared: read only.
	Object runtime.Object
}

// Mark is a place in the record.
type Mark int

// View is the newest state of all objects at one time.
type View struct{ objects map[string]Entry }

// Single is the view of one change: of its object alone, as it was at its end if it was deleted.
func Single(e Entry) View { return View{objects: map[string]Entry{e.Key: e}} }

// Pods returns the pods of a namespace.
func (v View) Pods(namespace string) []*corev1.Pod {
	var pods []*corev1.Pod
	for _, e := range v.objects {
		if p, ok := e.Object.(*corev1.Pod); ok && p.Namespace == namespace {
			pods = append(pods, p)
		}
	}
	return pods
}

// Pod returns a pod, or nil.
func (v View) Pod(namespace, name string) *corev1.Pod {
	p, _ := v.objects[podPrefix+namespace+"/"+name].Object.(*corev1.Pod)
	return p
}

// Node returns the node, or nil.
func (v View) Node() *corev1.Node {
	for key, e := range v.objects {
		if strings.HasPrefix(key, nodePrefix) {
			return e.Object.(*corev1.Node)
		}
	}
	return nil
}

// Lease returns the node's Lease, or nil.
func (v View) Lease() *coordinationv1.Lease {
	for key, e := range v.objects {
		if strings.HasPrefix(key, leasePrefix) {
			return e.Object.(*coordinationv1.Lease)
		}
	}
	return nil
}

// Events returns the events about a pod.
func (v View) Events(namespace, pod string) []*corev1.Event {
	var events []*corev1.Event
	for _, e := range v.objects {
		ev, ok := e.Object.(*corev1.Event)
		if ok && ev.InvolvedObject.Kind == "Pod" && ev.InvolvedObject.Namespace == namespace &&
			ev.InvolvedObject.Name == pod {
			events = append(events, ev)
		}
	}
	return events
}

// Recorder is a running record. Its methods may be called from several goroutines.
type Recorder struct {
	source *source
	cancel context.CancelFunc
	done   chan struct{}

	mu       sync.Mutex
	entries  []Entry
	objects  map[string]Entry
	progress int64         // all changes up to this revision are in the record
	changed  chan struct{} // closed and replaced at each change
	err      error
}

// Start lists what there is and records from there on until Close.
func Start(ctx context.Context, o Options) (*Recorder, error) {
	s, err := dial(o)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	listed, revision, err := s.list(ctx, now)
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r := &Recorder{
		source:   s,
		cancel:   cancel,
		done:     make(chan struct{}),
		objects:  map[string]Entry{},
		progress: revision,
		changed:  make(chan struct{}),
	}
	r.add(listed...)
	go func() {
		defer close(r.done)
		if err := s.run(ctx, revision, r.add, r.passed); ctx.Err() == nil {
			r.fail(err)
		}
	}()
	return r, nil
}

// Close ends the record. It returns the error that broke it, if one did.
func (r *Recorder) Close() error {
	r.cancel()
	<-r.done
	return errors.Join(r.Err(), r.source.close())
}

// Err is what broke the record, or nil.
func (r *Recorder) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// Mark is the present end of the record.
func (r *Recorder) Mark() Mark {
	r.mu.Lock()
	defer r.mu.Unlock()
	return Mark(len(r.entries))
}

// Since returns what happened after the mark.
func (r *Recorder) Since(m Mark) []Entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Entry(nil), r.entries[m:]...)
}

// History returns all states of a pod, the oldest first.
func (r *Recorder) History(uid types.UID) []*corev1.Pod {
	var all []*corev1.Pod
	for _, e := range r.Since(0) {
		if p, ok := e.Object.(*corev1.Pod); ok && p.UID == uid {
			all = append(all, p)
		}
	}
	return all
}

// View returns the newest state.
func (r *Recorder) View() View {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := View{objects: make(map[string]Entry, len(r.objects))}
	for k, e := range r.objects {
		v.objects[k] = e
	}
	return v
}

// Wait returns when the condition gives nil, which it is asked at each change; its last error says
// what was missing when the context ended.
func (r *Recorder) Wait(ctx context.Context, condition func(View) error) error {
	for {
		r.mu.Lock()
		broken, changed := r.err, r.changed
		r.mu.Unlock()
		missing := condition(r.View()) // of later than changed: no change is missed
		if broken != nil {
			return broken
		}
		if missing == nil {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%w (%w)", missing, ctx.Err())
		}
	}
}

// Sync returns when everything that has happened until its call is in the record.
func (r *Recorder) Sync(ctx context.Context) error {
	revision, err := r.source.revision(ctx)
	if err != nil {
		return err
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		r.source.askProgress()
		r.mu.Lock()
		broken, progress, changed := r.err, r.progress, r.changed
		r.mu.Unlock()
		if broken != nil {
			return broken
		}
		if progress >= revision {
			return nil
		}
		select {
		case <-changed:
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("the record is complete up to revision %d, not to %d: %w", progress, revision, ctx.Err())
		}
	}
}

func (r *Recorder) add(entries ...Entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range entries {
		if e.Deleted {
			e.Object = r.objects[e.Key].Object
			delete(r.objects, e.Key)
		} else {
			r.objects[e.Key] = e
		}
		r.entries = append(r.entries, e)
	}
	r.wake()
}

func (r *Recorder) passed(revision int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.progress = max(r.progress, revision)
	r.wake()
}

func (r *Recorder) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = fmt.Errorf("the record broke: %w", err)
	r.wake()
}

func (r *Recorder) wake() {
	close(r.changed)
	r.changed = make(chan struct{})
}
