package manager

import (
	"net/http"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// pageNotFound is what client-go makes of a 404 that is not the API server's.
func pageNotFound(verb, name string) error {
	return apierrors.NewGenericServerResponse(http.StatusNotFound, verb, pods, name, "404 page not found", 0, true)
}

func (a *apiserver) fails(trouble func(verb, name string) error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.trouble = trouble
}

// TestAnAnswerThatIsNotTheAPIServers ends no reports: it is tried again.
func TestAnAnswerThatIsNotTheAPIServers(t *testing.T) {
	conflictThenPage := func(verb, name string) error {
		if verb == "patch" {
			return apierrors.NewConflict(pods, name, nil)
		}
		return pageNotFound(verb, name)
	}
	conflictThenBlank := func(verb, name string) error {
		if verb == "patch" {
			return apierrors.NewConflict(pods, name, nil)
		}
		return errBlank
	}
	for name, trouble := range map[string]func(verb, name string) error{
		"to a patch": pageNotFound, "to the look after a conflict": conflictThenPage,
		"of 200 to a patch":                   func(string, string) error { return errBlank },
		"of 200 to the look after a conflict": conflictThenBlank,
	} {
		t.Run(name, func(t *testing.T) {
			a := newServer("web")
			managed(t, a, 1, func(t *testing.T, m *Manager) {
				p := a.get("web")
				a.fails(trouble)
				m.Set(p, runs(p))
				settle(2 * time.Second)
				if m.Pending() != 1 || m.Delivered(p.UID) {
					t.Error("the status counts as delivered")
				}
				a.fails(nil)
				settle(lastRetry)
				if got := a.get("web").Status.Phase; got != v1.PodRunning {
					t.Errorf("the phase in the API is %q", got)
				}
			})
		})
	}
}

// TestA404ToADeletion is not the end of a pod that has ended.
func TestA404ToADeletion(t *testing.T) {
	a := newServer("web")
	managed(t, a, 1, func(t *testing.T, m *Manager) {
		p := a.change("web", func(p *v1.Pod) { p.DeletionTimestamp = new(metav1.Now()) })
		a.fails(func(verb, name string) error {
			if verb == "patch" {
				return nil
			}
			return pageNotFound(verb, name)
		})
		m.Terminated(p, ended(p))
		settle(2 * time.Second)
		a.fails(nil)
		settle(lastRetry)
		if a.get("web") != nil {
			t.Error("the pod is never deleted")
		}
	})
}

// TestAPodThatIsBack in the API, where there was none, is reported again.
func TestAPodThatIsBack(t *testing.T) {
	a := newServer("web")
	managed(t, a, 1, func(t *testing.T, m *Manager) {
		p := a.get("web")
		a.fails(func(_, name string) error { return apierrors.NewNotFound(pods, name) })
		m.Set(p, runs(p))
		settle(time.Hour)
		if n := a.count("patch web"); n != 1 || m.Pending() != 0 {
			t.Errorf("%d patches of a pod that is not there, %d pending", n, m.Pending())
		}
		a.fails(nil)
		m.UpdateFromAPI(a.get("web"))
		settle(time.Second)
		if got := a.get("web").Status.Phase; got != v1.PodRunning {
			t.Errorf("the phase in the API is %q", got)
		}
	})
}

// TestWhatTheWatchBringsAfterADeletion is of the time before it, or an object that waits for its finalizers. A pod that
// is in the API without having been deleted is deleted again.
func TestWhatTheWatchBringsAfterADeletion(t *testing.T) {
	a := newServer("web")
	managed(t, a, 1, func(t *testing.T, m *Manager) {
		p := a.change("web", func(p *v1.Pod) {
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = new(metav1.Now()), new(int64(30))
		})
		m.Terminated(p, ended(p))
		settle(time.Second)
		if n := a.count("delete web"); n != 1 || a.get("web") != nil {
			t.Fatalf("%d deletions", n)
		}
		m.UpdateFromAPI(p)
		kept := p.DeepCopy()
		kept.ResourceVersion, kept.DeletionGracePeriodSeconds = "1000", new(int64(0))
		m.UpdateFromAPI(kept)
		settle(time.Hour)
		if n := a.count("delete web"); n != 1 {
			t.Errorf("%d deletions", n)
		}
		a.mu.Lock()
		a.version = 2000
		restored := a.put(p.DeepCopy())
		a.mu.Unlock()
		m.UpdateFromAPI(restored)
		settle(time.Second)
		if a.get("web") != nil {
			t.Error("a pod that was restored is not deleted")
		}
	})
}
