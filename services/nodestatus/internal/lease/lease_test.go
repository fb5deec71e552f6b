package lease

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

var resource = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

// apiserver keeps one Lease as the real one does: versions, conflicts, and outages of two kinds.
type apiserver struct {
	mu      sync.Mutex
	lease   *coordinationv1.Lease
	version int
	refuses bool
	hangs   bool
	blank   bool // the next update is answered with what client-go makes of {}
	writes  []time.Time
	reads   int
}

func (a *apiserver) request(ctx context.Context) error {
	a.mu.Lock()
	refuses, hangs := a.refuses, a.hangs
	a.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	if refuses {
		return errors.New("connection refused")
	}
	return nil
}

func (a *apiserver) Get(ctx context.Context, name string, _ metav1.GetOptions) (*coordinationv1.Lease, error) {
	if err := a.request(ctx); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reads++
	if a.lease == nil {
		return nil, apierrors.NewNotFound(resource, name)
	}
	return a.lease.DeepCopy(), nil
}

func (a *apiserver) Create(ctx context.Context, l *coordinationv1.Lease,
	_ metav1.CreateOptions) (*coordinationv1.Lease, error) {
	if err := a.request(ctx); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.lease != nil {
		return nil, apierrors.NewAlreadyExists(resource, l.Name)
	}
	return a.store(l), nil
}

func (a *apiserver) Update(ctx context.Context, l *coordinationv1.Lease,
	_ metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	if err := a.request(ctx); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.blank:
		a.blank = false
		return &coordinationv1.Lease{}, nil
	case a.lease == nil:
		return nil, apierrors.NewNotFound(resource, l.Name)
	case l.ResourceVersion == "":
		return nil, apierrors.NewInvalid(schema.GroupKind{Group: resource.Group, Kind: "Lease"}, l.Name, nil)
	case l.ResourceVersion != a.lease.ResourceVersion:
		return nil, apierrors.NewConflict(resource, l.Name, errors.New("changed meanwhile"))
	}
	return a.store(l), nil
}

func (a *apiserver) store(l *coordinationv1.Lease) *coordinationv1.Lease {
	a.version++
	a.lease = l.DeepCopy()
	a.lease.ResourceVersion = string(rune('0' + a.version%10))
	a.writes = append(a.writes, time.Now())
	return a.lease.DeepCopy()
}

func (a *apiserver) set(change func(*apiserver)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change(a)
}

// rig renews in virtual time until the test ends.
type rig struct {
	*apiserver
	*Renewer
	mu     sync.Mutex
	closed error
	uid    types.UID
}

func inBubble(t *testing.T, test func(t *testing.T, r *rig)) {
	synctest.Test(t, func(t *testing.T) {
		r := &rig{apiserver: &apiserver{}, uid: "uid-1"}
		r.Renewer = New(Options{
			Leases: r.apiserver, NodeName: "n", Duration: 40 * time.Second, RequestTimeout: 5 * time.Second,
			Gate:    func() error { r.mu.Lock(); defer r.mu.Unlock(); return r.closed },
			NodeUID: func() types.UID { r.mu.Lock(); defer r.mu.Unlock(); return r.uid },
			Failed:  func(error) {}, Succeeded: func() {},
			Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			for ctx.Err() == nil {
				pause := r.Renew(ctx)
				select {
				case <-ctx.Done():
				case <-time.After(pause):
				}
			}
		}()
		test(t, r)
		cancel()
		<-done
	})
}

func pass(d time.Duration) { time.Sleep(d); synctest.Wait() }

func TestLeaseIsRenewedEveryTenSeconds(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		pass(5 * time.Minute)
		r.set(func(a *apiserver) {
			for i := 1; i < len(a.writes); i++ {
				if d := a.writes[i].Sub(a.writes[i-1]); d < 10*time.Second || d > 10400*time.Millisecond {
					t.Errorf("%v between two renewals", d)
				}
			}
			if a.reads != 1 {
				t.Errorf("%d reads, want one at the start", a.reads)
			}
			l := a.lease
			if *l.Spec.HolderIdentity != "n" || *l.Spec.LeaseDurationSeconds != 40 || l.Namespace != "kube-node-lease" {
				t.Errorf("lease %v", l)
			}
			if o := l.OwnerReferences; len(o) != 1 || o[0].Kind != "Node" || o[0].UID != "uid-1" {
				t.Errorf("owners %v", o)
			}
		})
	})
}

func TestExistingLeaseIsRenewedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &apiserver{}
		a.store(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
		r := New(Options{
			Leases:         a,
			NodeName:       "n",
			Duration:       40 * time.Second,
			RequestTimeout: time.Second,
			Gate:           func() error { return nil },
			NodeUID:        func() types.UID { return "" },
			Failed:         func(error) {},
			Succeeded:      func() {},
			Log:            slog.New(slog.DiscardHandler),
			Metrics:        prometheus.NewRegistry(),
		})
		r.Renew(t.Context())
		if len(a.writes) != 2 {
			t.Errorf("%d writes, want the lease renewed although the Node is not known yet", len(a.writes))
		}
	})
}

func TestNoLeaseWithoutANode(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.mu.Lock()
		r.uid = ""
		r.mu.Unlock()
		pass(5 * time.Second) // for a renewal that began before
		r.set(func(a *apiserver) { a.lease, a.writes = nil, nil })
		pass(time.Minute)
		r.set(func(a *apiserver) {
			if a.lease != nil {
				t.Error("a lease that no node owns was created")
			}
		})
		r.mu.Lock()
		r.uid = "uid-2"
		r.mu.Unlock()
		pass(2 * time.Second)
		r.set(func(a *apiserver) {
			if a.lease == nil || a.lease.OwnerReferences[0].UID != "uid-2" {
				t.Errorf("lease %v, want one of uid-2 within 2 s", a.lease)
			}
		})
	})
}

func TestLeaseIsRenewedSoonAfterAnOutage(t *testing.T) {
	for name, outage := range map[string]func(*apiserver){
		"refused": func(a *apiserver) { a.refuses = true },
		"hanging": func(a *apiserver) { a.hangs = true },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *rig) {
				for _, length := range []time.Duration{time.Second, 13 * time.Second, time.Minute, 10 * time.Minute} {
					pass(25 * time.Second)
					r.set(outage)
					pass(length)
					r.set(func(a *apiserver) { a.refuses, a.hangs, a.writes = false, false, nil })
					back := time.Now()
					pass(11 * time.Second)
					limit := 8 * time.Second
					if length < 11*time.Second {
						limit = 11 * time.Second // the outage may have fallen between two renewals
					}
					r.set(func(a *apiserver) {
						if len(a.writes) == 0 || a.writes[0].Sub(back) > limit {
							t.Errorf("renewed at %v, %v was the end of an outage of %v", a.writes, back, length)
						}
					})
				}
			})
		})
	}
}

func TestClosedGateWithholdsTheLease(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		pass(25 * time.Second)
		gate := func(err error) { r.mu.Lock(); defer r.mu.Unlock(); r.closed = err }
		gate(errors.New("podsync hangs"))
		closed := time.Now()
		pass(5 * time.Minute)
		if at := r.Renewed(); at.After(closed) {
			t.Errorf("renewed %v after the gate closed", at.Sub(closed))
		}
		gate(nil)
		pass(2 * time.Second)
		if at := r.Renewed(); time.Since(at) > 2*time.Second {
			t.Errorf("last renewed %v ago, want at once when the gate opens", time.Since(at))
		}
	})
}

func TestForeignWriteAndDeleteAreSurvived(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		pass(25 * time.Second)
		r.set(func(a *apiserver) { a.store(a.lease) })
		pass(11 * time.Second)
		if age := time.Since(r.Renewed()); age > 11*time.Second {
			t.Errorf("last renewed %v ago after the write of another client", age)
		}
		r.set(func(a *apiserver) { a.lease = nil })
		pass(11 * time.Second)
		r.set(func(a *apiserver) {
			if a.lease == nil {
				t.Error("the deleted lease was not created again")
			}
		})
	})
}

// TestAnAnswerThatIsNoLease comes once, from what stands between the node and the API server.
func TestAnAnswerThatIsNoLease(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		pass(25 * time.Second)
		r.set(func(a *apiserver) { a.blank = true })
		pass(11 * time.Second)
		r.set(func(a *apiserver) { a.writes = nil })
		pass(11 * time.Second)
		r.set(func(a *apiserver) {
			if a.blank || len(a.writes) == 0 {
				t.Errorf("the lease is renewed at %v since then", a.writes)
			}
		})
	})
}
