package podcertificate

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/record"
)

const (
	// abandonAfter is when a request that the watch does not show counts as deleted, without its jitter.
	abandonAfter = 10 * time.Minute
	// renewalPause is the least time between an answer and the next request. A certificate that is due for renewal as it
	// comes, because a clock is wrong, is followed by no other at once.
	renewalPause = 5 * time.Minute
	// overdueAfter is how long a certificate may be due for another before its pod's Events say so.
	overdueAfter = 10 * time.Minute
	// jitter keeps pods that started together from asking together.
	jitter = 5 * time.Minute
)

// newPauses are the pauses between requests that fail.
func newPauses() wait.Backoff {
	return wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.2, Steps: 32, Cap: 5 * time.Minute}
}

// projection is the state of one. Its fields belong to the lock of its Certificates.
type projection struct {
	pod *v1.Pod
	// issued is what the pod has, pending the request that is under way; each may be nil.
	issued  *issued
	pending *pending
	// refused is why there will be no certificate.
	refused error
	// asking: a request is being made.
	asking bool
	// failed is why the last request could not be made. Before retry there is no other.
	failed error
	retry  time.Time
	pauses wait.Backoff
	// moved is closed, and replaced, when something has changed.
	moved chan struct{}
}

// pending is a request and the key that it is for.
type pending struct {
	name string
	key  []byte
	// abandon is when it counts as deleted if it is not seen.
	abandon time.Time
}

// issued is a certificate.
type issued struct {
	Bundle
	renew, notAfter time.Time
	// saidOverdue and saidExpired are the Events that were sent.
	saidOverdue, saidExpired bool
}

// begins reports whether a request is due, and if so counts it as begun.
func (p *projection) begins() bool {
	now := time.Now()
	if p.refused != nil || p.pending != nil || p.asking || now.Before(p.retry) ||
		p.issued != nil && now.Before(p.issued.renew) {
		return false
	}
	p.asking = true
	return true
}

// requested takes what a request has come to.
func (p *projection) requested(made *pending, err error) {
	p.asking, p.pending, p.failed = false, made, err
	if err != nil {
		p.retry = time.Now().Add(p.pauses.Step())
	} else {
		p.pauses, p.retry = newPauses(), time.Time{}
	}
	p.move()
}

func (p *projection) move() {
	close(p.moved)
	p.moved = make(chan struct{})
}

// waits reports whether the first certificate may still come.
func (p *projection) waits() bool {
	return p.issued == nil && p.refused == nil && (p.pending != nil || p.asking)
}

func (p *projection) bundle() (Bundle, error) {
	switch {
	case p.refused != nil:
		return Bundle{}, p.refused
	case p.issued != nil:
		return p.issued.Bundle, nil
	case p.failed != nil:
		return Bundle{}, p.failed
	}
	return Bundle{}, errNotYet
}

// settle takes what is known of the pending request, and reports whether that ends it.
func (p *projection) settle(request *certificatesv1.PodCertificateRequest, err error,
	events record.EventRecorder) bool {
	if apierrors.IsNotFound(err) && time.Now().After(p.pending.abandon) {
		p.pending = nil // it was deleted: the next call requests again
		p.move()
		return true
	}
	if err != nil {
		return false // the watch does not know it yet
	}
	for _, condition := range request.Status.Conditions {
		switch condition.Type {
		case certificatesv1.PodCertificateRequestConditionTypeDenied,
			certificatesv1.PodCertificateRequestConditionTypeFailed:
			p.refuse(request, &condition, events)
		case certificatesv1.PodCertificateRequestConditionTypeIssued:
			p.take(request)
		default:
			continue
		}
		p.pending = nil
		p.move()
		return true
	}
	return false
}

func (p *projection) refuse(request *certificatesv1.PodCertificateRequest, why *metav1.Condition,
	events record.EventRecorder) {
	verb, was := "denied", "was denied"
	if why.Type == certificatesv1.PodCertificateRequestConditionTypeFailed {
		verb, was = "failed", "failed"
	}
	p.refused = fmt.Errorf("PodCertificateRequest was permanently %s: reason=%q message=%q", verb, why.Reason,
		why.Message)
	events.Eventf(p.pod, v1.EventTypeWarning, why.Type, "PodCertificateRequest %s/%s %s, reason=%q, message=%q",
		request.Namespace, request.Name, was, why.Reason, why.Message)
}

func (p *projection) take(request *certificatesv1.PodCertificateRequest) {
	status := &request.Status
	if status.BeginRefreshAt == nil || status.NotAfter == nil { // no API server takes that
		p.refused = errors.New("PodCertificateRequest was issued without the times of its certificate")
		return
	}
	p.retry = time.Now().Add(renewalPause)
	p.issued = &issued{
		Bundle:   Bundle{Key: p.pending.key, Chain: onlyCertificates([]byte(status.CertificateChain))},
		renew:    status.BeginRefreshAt.Add(rand.N(jitter)),
		notAfter: status.NotAfter.Time,
	}
}

// warn says in the pod's Events, once, that its certificate is overdue for renewal or has expired.
func (p *projection) warn(events record.EventRecorder) {
	if p.issued == nil || p.refused != nil {
		return
	}
	now := time.Now()
	if now.After(p.issued.renew.Add(overdueAfter)) && !p.issued.saidOverdue {
		p.issued.saidOverdue = true
		events.Event(p.pod, v1.EventTypeWarning, "CertificateOverdueForRefresh", "PodCertificate refresh overdue")
	}
	if now.After(p.issued.notAfter) && !p.issued.saidExpired {
		p.issued.saidExpired = true
		events.Event(p.pod, v1.EventTypeWarning, "CertificateExpired", "PodCertificate expired")
	}
}
