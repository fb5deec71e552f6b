package authreview

import (
	"context"
	"errors"
	"net"
	"net/url"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	nodestatusv1 "github.com/microlet/microlet/proto/microlet/nodestatus/v1"
)

// apiserver reviews, after a while.
type apiserver struct {
	mu        sync.Mutex
	now, peak int
	takes     time.Duration // the review of a token; one of access takes no time
	err       error
	fails     int // err is that of so many reviews; 0: of all
	asked     int
	saw       *authenticationv1.TokenReview
}

func (a *apiserver) enter(ctx context.Context, takes time.Duration) error {
	a.mu.Lock()
	a.now++
	a.peak = max(a.peak, a.now)
	a.asked++
	err := a.err
	if a.fails > 0 && a.asked > a.fails {
		err = nil
	}
	a.mu.Unlock()
	defer func() { a.mu.Lock(); a.now--; a.mu.Unlock() }()
	select {
	case <-time.After(takes):
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (a *apiserver) ReviewToken(ctx context.Context,
	r *authenticationv1.TokenReview) (*authenticationv1.TokenReview, error) {
	if err := a.enter(ctx, a.takes); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.saw = r.DeepCopy()
	out := r.DeepCopy()
	out.Status = authenticationv1.TokenReviewStatus{
		Authenticated: true,
		User:          authenticationv1.UserInfo{Username: "jane"},
	}
	return out, nil
}

func (a *apiserver) ReviewAccess(ctx context.Context,
	r *authorizationv1.SubjectAccessReview) (*authorizationv1.SubjectAccessReview, error) {
	if err := a.enter(ctx, 0); err != nil {
		return nil, err
	}
	out := r.DeepCopy()
	out.Status.Allowed = r.Spec.User == "jane"
	return out, nil
}

func token(t *testing.T) *nodestatusv1.ReviewTokenRequest {
	t.Helper()
	r := authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: "secret"}}
	r.Name, r.Status.Authenticated = "not asked for", true
	data, err := r.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return &nodestatusv1.ReviewTokenRequest{Review: data}
}

// An API server that restarts, or is busy for a moment, refuses no caller.
func TestAReviewThatFailsForAMomentIsRepeated(t *testing.T) {
	for name, transient := range map[string]error{
		"connection reset": &url.Error{Op: "Post", URL: "https://a/apis", Err: &net.OpError{Op: "read", Net: "tcp",
			Err: os.NewSyscallError("read", syscall.ECONNRESET)}},
		"internal error":    apierrors.NewInternalError(errors.New("etcdserver: leader changed")),
		"timeout":           apierrors.NewTimeoutError("request did not complete", 0),
		"too many requests": apierrors.NewTooManyRequestsError("busy"),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if _, err := NewServer(&apiserver{err: transient, fails: 4}, nil).ReviewToken(t.Context(), token(t)); err != nil {
					t.Errorf("a token: %v", err)
				}
				access := &nodestatusv1.ReviewAccessRequest{}
				if _, err := NewServer(&apiserver{err: transient, fails: 4}, nil).ReviewAccess(t.Context(), access); err != nil {
					t.Errorf("access: %v", err)
				}
				a := &apiserver{err: transient}
				_, err := NewServer(a, nil).ReviewToken(t.Context(), token(t))
				if status.Code(err) != codes.Unavailable || a.asked != 5 {
					t.Errorf("for ever: %v after %d times", err, a.asked)
				}
			})
		})
	}
}

// A review that waits to be repeated keeps no place from others.
func TestAPauseTakesNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &apiserver{err: apierrors.NewTooManyRequestsError("busy"), fails: concurrency}
		s := NewServer(a, nil)
		for range concurrency {
			go func() { _, _ = s.ReviewToken(t.Context(), token(t)) }()
		}
		synctest.Wait()
		began := time.Now()
		if _, err := s.ReviewToken(t.Context(), token(t)); err != nil || time.Since(began) != 0 {
			t.Errorf("another token: %v after %s", err, time.Since(began))
		}
		time.Sleep(deadline)
	})
}

func TestReviews(t *testing.T) {
	a := &apiserver{}
	s := NewServer(a, nil)
	answer, err := s.ReviewToken(t.Context(), token(t))
	if err != nil {
		t.Fatal(err)
	}
	var review authenticationv1.TokenReview
	if err := review.Unmarshal(answer.GetReview()); err != nil || review.Status.User.Username != "jane" {
		t.Errorf("the answer is %v, %v", review.Status, err)
	}
	if a.saw.Spec.Token != "secret" || a.saw.Name != "" || a.saw.Status.Authenticated {
		t.Errorf("the apiserver was sent %+v, more than the question", a.saw)
	}
	access := authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: "jane"}}
	data, err := access.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	allowed, err := s.ReviewAccess(t.Context(), &nodestatusv1.ReviewAccessRequest{Review: data})
	if err != nil {
		t.Fatal(err)
	}
	if err := access.Unmarshal(allowed.GetReview()); err != nil || !access.Status.Allowed {
		t.Errorf("the answer is %v, %v", access.Status, err)
	}
	if _, err := s.ReviewToken(t.Context(),
		&nodestatusv1.ReviewTokenRequest{Review: []byte("\xff")}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("what is no review: %v", err)
	}
}

func TestErrorsTellWhetherToAskAgain(t *testing.T) {
	for name, test := range map[string]struct {
		err  error
		want codes.Code
	}{
		"connection refused": {errors.New("connection refused"), codes.Unavailable},
		"too many requests":  {apierrors.NewTooManyRequests("slow down", 1), codes.Unavailable},
		"internal error":     {apierrors.NewInternalError(errors.New("x")), codes.Unavailable},
		"forbidden": {apierrors.NewForbidden(schema.GroupResource{Resource: "tokenreviews"}, "", errors.New("x")),
			codes.FailedPrecondition},
		"unauthorized": {apierrors.NewUnauthorized("x"), codes.FailedPrecondition},
	} {
		synctest.Test(t, func(t *testing.T) {
			_, err := NewServer(&apiserver{err: test.err}, nil).ReviewToken(t.Context(), token(t))
			if status.Code(err) != test.want {
				t.Errorf("%s: %v, want %v", name, err, test.want)
			}
		})
	}
}

func TestReviewsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &apiserver{takes: time.Second}
		s := NewServer(a, nil)
		var wg sync.WaitGroup
		for range 4 * concurrency {
			wg.Go(func() {
				if _, err := s.ReviewToken(t.Context(), token(t)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if a.peak != concurrency {
			t.Errorf("%d reviews at one time, want %d", a.peak, concurrency)
		}
		// An apiserver that does not answer costs each its deadline, and frees the places.
		a.takes = time.Hour
		began := time.Now()
		for range 2 * concurrency {
			wg.Go(func() {
				if _, err := s.ReviewToken(t.Context(), token(t)); status.Code(err) != codes.DeadlineExceeded {
					t.Errorf("%v, want the deadline", err)
				}
			})
		}
		wg.Wait()
		if took := time.Since(began); took > deadline+time.Second {
			t.Errorf("it took %v", took)
		}
		a.takes = 0
		if _, err := s.ReviewToken(t.Context(), token(t)); err != nil {
			t.Error(err)
		}
	})
}

// TestTokensDoNotHoldUpAccess has more tokens of strangers reviewed than there are places, by an apiserver that does
// not answer.
func TestTokensDoNotHoldUpAccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &apiserver{takes: time.Hour}
		s := NewServer(a, nil)
		var wg sync.WaitGroup
		for range 4 * concurrency {
			wg.Go(func() {
				if _, err := s.ReviewToken(t.Context(), token(t)); status.Code(err) != codes.DeadlineExceeded {
					t.Errorf("a token: %v, want the deadline", err)
				}
			})
		}
		synctest.Wait()
		access := authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: "jane"}}
		data, err := access.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if _, err := s.ReviewAccess(t.Context(), &nodestatusv1.ReviewAccessRequest{Review: data}); err != nil ||
			time.Since(began) > 0 {
			t.Errorf("a review of access took %v behind the tokens: %v", time.Since(began), err)
		}
		wg.Wait()
	})
}
