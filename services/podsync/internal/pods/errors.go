package pods

import (
	"errors"
	"math/rand/v2"
	"time"
)

const (
	// transientRetry is the wait after an error that is expected to pass.
	transientRetry = time.Second
	// patientAfter is the number of failures after which the wait doubles, up to startRetry. A failure that lasts longer
	// must not have every pod call every second.
	patientAfter = 4
)

// transientError is a failure of something around the pod, not of the pod.
type transientError struct {
	what string
	err  error
}

func (e *transientError) Error() string { return e.what + ": " + e.err.Error() }
func (e *transientError) Unwrap() error { return e.err }

func transient(what string, err error) error { return &transientError{what, err} }

// reportedError is a failure that the pod's own status or events show its owner.
type reportedError struct {
	what  string
	err   error
	again time.Duration
}

func (e *reportedError) Error() string { return e.what + ": " + e.err.Error() }
func (e *reportedError) Unwrap() error { return e.err }

func reported(what string, err error) error { return &reportedError{what, err, startRetry} }

// reportedSoon is reported for a failure that another component backs off from and shows.
func reportedSoon(what string, err error) error { return &reportedError{what, err, transientRetry} }

// retryAfter returns how long to wait, with jitter, after an error that ended that many syncs one after another.
func retryAfter(err error, failures int) time.Duration {
	var passing *transientError
	if errors.As(err, &passing) {
		wait := transientRetry
		for n := patientAfter; n < failures && wait < startRetry; n++ {
			wait *= 2
		}
		return jitter(min(wait, startRetry))
	}
	return jitter(startRetry)
}

// jitter adds up to half of d.
func jitter(d time.Duration) time.Duration { return d + rand.N(d/2) }
