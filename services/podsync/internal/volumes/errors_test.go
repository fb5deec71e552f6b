package volumes

import (
	"errors"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/csivolume"
)

// TestErrorsOfADriver: their Events are the kubelet's, and a pod that is rejected names its unattached volumes.
func TestErrorsOfADriver(t *testing.T) {
	waits := errors.New("no attachment")
	const unable = "Unable to attach or mount volumes: unmounted volumes=[data], "
	for _, c := range []struct {
		err                  error
		text                 string
		unattached, exceeded bool
	}{
		{&csivolume.NotAttached{Err: waits},
			unable + "unattached volumes=[data], failed to process volumes=[]: no attachment", true, false},
		{&csivolume.LimitExceeded{Err: waits}, `MountVolume.SetUp failed for volume "pv" : no attachment`, true, true},
		{&csivolume.Error{Step: "MountVolume.MountDevice failed", Err: waits},
			`MountVolume.MountDevice failed for volume "pv" : no attachment`, false, false},
	} {
		m := labelManager(t.TempDir(), &labelingCSI{err: c.err}, v1.ReadWriteOnce)
		_, err := m.Mount(t.Context(), labelClaimant("u1", ""))
		var one *Error
		if !errors.As(err, &one) {
			t.Fatalf("%v is no *Error", err)
		}
		if err.Error() != c.text || one.Problem() != c.text || one.Volume != "data" || !errors.Is(err, waits) {
			t.Errorf("volume %s: %v, %s", one.Volume, err, one.Problem())
		}
		if one.IsUnattached() != c.unattached || one.ExceedsLimit() != c.exceeded {
			t.Errorf("%v: unattached %v, exceeds the limit %v", err, one.IsUnattached(), one.ExceedsLimit())
		}
	}
}

// TestAProblemWithoutAStep is shown beside the name of its volume.
func TestAProblemWithoutAStep(t *testing.T) {
	e := errorOf("config", errors.New("configmap not found"))
	if e.Problem() != "configmap not found" ||
		e.Error() != `MountVolume.SetUp failed for volume "config" : configmap not found` {
		t.Errorf("%s, %v", e.Problem(), e)
	}
}
