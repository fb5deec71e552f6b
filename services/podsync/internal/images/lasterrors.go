package images

import (
	"sync"
	"time"
)

// lastErrors remembers, for each pod and image in back-off, why the pull failed. What
// is older than any back-off is dropped, so that pods which are gone leave nothing.
type lastErrors struct {
	mu sync.Mutex
	m  map[string]lastError
}

type lastError struct {
	text string
	at   time.Time
}

func (l *lastErrors) at(key string) (lastError, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok := l.m[key]
	return e, ok
}

func (l *lastErrors) set(key, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for k, e := range l.m {
		if now.Sub(e.at) > 2*backOffMax {
			delete(l.m, k)
		}
	}
	if l.m == nil {
		l.m = map[string]lastError{}
	}
	l.m[key] = lastError{text, now}
}

func (l *lastErrors) forget(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.m, key)
}
