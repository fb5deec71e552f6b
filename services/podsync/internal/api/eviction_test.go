package api

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/podsync/internal/eviction"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// evictor notes what it was asked for, and fails.
type evictor struct {
	err   error
	asked []eviction.Request
}

func (e *evictor) Evict(_ context.Context, r eviction.Request) error {
	e.asked = append(e.asked, r)
	return e.err
}

// dead is how many containers were removed, and whether that failed.
type dead struct {
	n   int
	err error
}

func (d dead) RemoveDead(context.Context) (int, error) { return d.n, d.err }

func TestAnEvictionsOutcomeHasItsCode(t *testing.T) {
	for err, want := range map[error]codes.Code{
		nil: codes.OK, fmt.Errorf("evict: %w", pod.ErrUnknown): codes.NotFound,
		eviction.ErrCritical: codes.FailedPrecondition, eviction.ErrWithinLimit: codes.FailedPrecondition,
		context.Canceled:     codes.DeadlineExceeded,
		errors.New("broken"): codes.Internal,
	} {
		e := &evictor{err: err}
		_, got := (&evictions{evictor: e}).Evict(t.Context(),
			&podsyncv1.EvictRequest{
				PodUid: "u", Message: "low", GracePeriodSeconds: 3, DisruptionTarget: true,
				ExceededLimit: &podsyncv1.ExceededLimit{EmptyDir: "v", Container: "c", UsedBytes: 7},
			})
		if status.Code(got) != want {
			t.Errorf("%v is reported as %v, want code %v", err, got, want)
		}
		if r := e.asked[0]; r.UID != "u" || r.Message != "low" || r.GraceSeconds != 3 || !r.DisruptionTarget ||
			r.Limit == nil || *r.Limit != (eviction.Limit{EmptyDir: "v", Container: "c", UsedBytes: 7}) {
			t.Errorf("asked for %+v", r)
		}
	}
}

// TestAnEvictionThatTakesLong is answered, and one that its caller gives up is not.
func TestAnEvictionThatTakesLong(t *testing.T) {
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		ctx      context.Context //nolint:containedctx // a table
		err      error
		code     codes.Code
		stopping bool
	}{
		"stopped":        {t.Context(), nil, codes.OK, false},
		"stopping":       {t.Context(), fmt.Errorf("evict: %w", context.DeadlineExceeded), codes.OK, true},
		"it is given up": {gone, context.DeadlineExceeded, codes.DeadlineExceeded, false},
	} {
		got, err := (&evictions{evictor: &evictor{err: c.err}}).Evict(c.ctx,
			&podsyncv1.EvictRequest{PodUid: "u", Message: "m"})
		if status.Code(err) != c.code || got.GetStopping() != c.stopping {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

func TestAnEvictionIsBounded(t *testing.T) {
	many := map[string]string{}
	for i := range 17 {
		many[fmt.Sprint(i)] = ""
	}
	for want, r := range map[string]*podsyncv1.EvictRequest{
		"pod_uid":       {PodUid: "../u", Message: "low"},
		"message has 0": {PodUid: "u"},
		"message has 8": {PodUid: "u", Message: strings.Repeat("x", podsyncv1.MaxEvictMessage+1)},
		"grace_period":  {PodUid: "u", Message: "low", GracePeriodSeconds: 1 << 40},
		"17 entries":    {PodUid: "u", Message: "low", Annotations: many},
		"annotations[":  {PodUid: "u", Message: "low", Annotations: map[string]string{"a": strings.Repeat("x", 5000)}},
	} {
		e := &evictor{}
		_, err := (&evictions{evictor: e}).Evict(t.Context(), r)
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), want) || len(e.asked) > 0 {
			t.Errorf("want %s: %v, asked %d times", want, err, len(e.asked))
		}
	}
}

func TestDeadContainersAreCounted(t *testing.T) {
	got, err := (&evictions{dead: dead{n: 3}}).RemoveDeadContainers(t.Context(), nil)
	if err != nil || got.GetRemoved() != 3 {
		t.Errorf("%v, %v", got, err)
	}
	if _, err = (&evictions{dead: dead{err: errors.New("no runtime")}}).RemoveDeadContainers(t.Context(),
		nil); status.Code(err) != codes.Internal {
		t.Errorf("%v", err)
	}
}
