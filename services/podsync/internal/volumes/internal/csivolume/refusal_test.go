package csivolume

import (
	"context"
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/csi/csitest"
)

// A driver refuses to publish again what a pod has: from time to time (requiresRepublish), or for the next process. The
// pod's folder stays, and so does what is known of it: else the driver would not be asked to unpublish it.
func TestARefusedRepublishTakesNothingFromThePod(t *testing.T) {
	for _, again := range []string{"the same process", "the next process"} {
		t.Run(again, func(t *testing.T) {
			root, d := t.TempDir(), csitest.Start(t)
			vs := newVolumes(t, root, d, unattached())
			published, err := vs.Publish(t.Context(), claimed(pod("u1"), "h"))
			if err != nil {
				t.Fatal(err)
			}
			if again == "the next process" {
				vs = newVolumes(t, root, d, unattached())
			}
			d.Before(func(_ context.Context, method string) error {
				if method == "NodePublishVolume" {
					return status.Error(codes.Internal, "no token today")
				}
				return nil
			})
			if _, err := vs.Publish(t.Context(), claimed(pod("u1"), "h")); err == nil {
				t.Error("it was published again")
			}
			if !exists(published.Path) {
				t.Error("the folder that the pod's containers see is gone")
			}
			release(t, vs, "u1")
			if found := append(left(t, root), d.Left()...); len(found) > 0 {
				t.Errorf("left: %q", found)
			}
		})
	}
}

// A call that the driver has refused leaves nothing. After one that may go on, the next process finds what to undo.
func TestWhatARefusalLeaves(t *testing.T) {
	for code, want := range map[codes.Code]bool{codes.InvalidArgument: false, codes.Unavailable: true} {
		d := csitest.Start(t)
		d.Before(func(_ context.Context, method string) error {
			if method == "NodePublishVolume" {
				return status.Error(code, "no disk")
			}
			return nil
		})
		root := t.TempDir()
		vs := newVolumes(t, root, d, unattached())
		_, err := vs.Publish(t.Context(), claimed(pod("u1"), "h"))
		var step *Error
		if !errors.As(err, &step) || step.Step != mountSteps.setUp || !strings.Contains(err.Error(), "no disk") {
			t.Errorf("%v", err)
		}
		if found := left(t, root); (len(found) > 0) != want {
			t.Errorf("%s leaves %q", code, found)
		}
		release(t, vs, "u1")
		if found := left(t, root); len(found) > 0 {
			t.Errorf("left: %q", found)
		}
	}
}
