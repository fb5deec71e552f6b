package growth

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
)

const (
	pending    = v1.PersistentVolumeClaimNodeResizePending
	progress   = v1.PersistentVolumeClaimNodeResizeInProgress
	infeasible = v1.PersistentVolumeClaimNodeResizeInfeasible
)

// rig is a claim of 1Gi whose volume has been grown to 2Gi, and a pod that has it.
type rig struct {
	*Expander
	t      *testing.T
	client *fake.Clientset
	events *record.FakeRecorder
	volume *Volume
	// grown are the sizes that the driver was asked for, and answer what it says.
	grown  []string
	answer error
}

func newRig(t *testing.T, change func(*v1.PersistentVolumeClaim)) *rig {
	t.Helper()
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "claim"}}
	claim.Spec.Resources.Requests = storage("2Gi")
	claim.Status.Capacity, claim.Status.AllocatedResources = storage("1Gi"), storage("2Gi")
	claim.Status.AllocatedResourceStatuses = map[v1.ResourceName]v1.ClaimResourceStatus{v1.ResourceStorage: pending}
	claim.Status.Conditions = []v1.PersistentVolumeClaimCondition{
		{Type: v1.PersistentVolumeClaimFileSystemResizePending, Status: v1.ConditionTrue},
		{Type: v1.PersistentVolumeClaimVolumeModifyingVolume, Status: v1.ConditionTrue},
	}
	if change != nil {
		change(claim)
	}
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
	pv.Spec.Capacity = storage("2Gi")
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod"}}
	r := &rig{t: t, client: fake.NewClientset(claim), events: record.NewFakeRecorder(100)}
	r.Expander = New(Options{Client: r.client, Node: "node-1", Events: r.events})
	r.volume = &Volume{Pod: pod, Claim: claim, PV: pv, Grow: func(_ context.Context, size resource.Quantity) error {
		r.grown = append(r.grown, size.String())
		if s := r.claim().Status.AllocatedResourceStatuses[v1.ResourceStorage]; s == pending {
			t.Error("the driver is called before the claim says so")
		}
		return r.answer
	}}
	return r
}

func storage(size string) v1.ResourceList {
	return v1.ResourceList{v1.ResourceStorage: resource.MustParse(size)}
}

// claim is what the API server has.
func (r *rig) claim() *v1.PersistentVolumeClaim {
	r.t.Helper()
	claim, err := r.client.CoreV1().PersistentVolumeClaims("ns").Get(r.t.Context(), "claim", metav1.GetOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	return claim
}

// newEvents returns the Events since the last call.
func (r *rig) newEvents() []string {
	var out []string
	for len(r.events.Events) > 0 {
		out = append(out, <-r.events.Events)
	}
	return out
}

// online looks at the claim as it is now.
func (r *rig) online() {
	r.volume.Claim = r.claim()
	r.Online(r.t.Context(), r.volume)
}

func (r *rig) mount() error {
	r.volume.Claim = r.claim()
	return r.DuringMount(r.t.Context(), r.volume)
}

func conditions(c *v1.PersistentVolumeClaim) []string {
	var out []string
	for _, condition := range c.Status.Conditions {
		out = append(out, string(condition.Type))
	}
	return out
}

func (r *rig) isFinished() {
	r.t.Helper()
	c := r.claim()
	if got := c.Status.Capacity.Storage().String(); got != "2Gi" || len(c.Status.AllocatedResourceStatuses) != 0 {
		r.t.Errorf("the claim has %s, and is %v", got, c.Status.AllocatedResourceStatuses)
	}
	if got := conditions(c); !slices.Equal(got, []string{"ModifyingVolume"}) {
		r.t.Errorf("conditions: %q", got)
	}
	if !slices.Equal(r.grown, []string{"2Gi"}) {
		r.t.Errorf("grown to %q", r.grown)
	}
	const event = `Normal FileSystemResizeSuccessful MountVolume.NodeExpandVolume succeeded for volume "pv" node-1`
	if got := r.newEvents(); !slices.Equal(got, []string{event, event}) {
		r.t.Errorf("events: %q", got)
	}
}

func TestAClaimIsExpandedOnce(t *testing.T) {
	for name, do := range map[string]func(*rig) error{
		"while the pod runs":   func(r *rig) error { r.online(); return nil },
		"when the pod gets it": func(r *rig) error { return r.mount() },
		"after a restart in the middle": func(r *rig) error {
			c := r.claim()
			c.Status.AllocatedResourceStatuses[v1.ResourceStorage] = progress
			_, err := r.client.CoreV1().PersistentVolumeClaims("ns").UpdateStatus(t.Context(), c, metav1.UpdateOptions{})
			r.online()
			return err
		},
		"of a controller that knows of no recovery": func(r *rig) error {
			c := r.claim()
			c.Status.AllocatedResourceStatuses, c.Status.AllocatedResources = nil, nil
			_, err := r.client.CoreV1().PersistentVolumeClaims("ns").UpdateStatus(t.Context(), c, metav1.UpdateOptions{})
			r.online()
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			if err := do(r); err != nil {
				t.Fatal(err)
			}
			r.isFinished()
			r.online()
			if err := r.mount(); err != nil || len(r.grown) != 1 {
				t.Errorf("%v, grown %d times", err, len(r.grown))
			}
		})
	}
}

func TestWhatDoesNotWaitForTheNodeIsLeftAlone(t *testing.T) {
	for name, change := range map[string]func(*v1.PersistentVolumeClaim){
		"the controller is at it": func(c *v1.PersistentVolumeClaim) {
			c.Status.AllocatedResourceStatuses[v1.ResourceStorage] = v1.PersistentVolumeClaimControllerResizeInProgress
		},
		"infeasible": func(c *v1.PersistentVolumeClaim) {
			c.Status.AllocatedResourceStatuses[v1.ResourceStorage] = infeasible
		},
		"another node has done it": func(c *v1.PersistentVolumeClaim) {
			c.Status.Capacity, c.Status.AllocatedResourceStatuses = storage("2Gi"), nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, change)
			before := r.claim()
			r.online()
			if err := r.mount(); err != nil {
				t.Error(err)
			}
			if after := r.claim(); len(r.grown) > 0 || after.Status.String() != before.Status.String() {
				t.Errorf("grown to %q, the claim is %v", r.grown, after.Status)
			}
			if got := r.newEvents(); len(got) > 0 {
				t.Errorf("events: %q", got)
			}
		})
	}
}

// A volume of many nodes is grown on each.
func TestAVolumeOfManyWritersIsGrownOnEachNode(t *testing.T) {
	for annotation, want := range map[string]int{"other": 1, notRequired: 0} {
		r := newRig(t, func(c *v1.PersistentVolumeClaim) {
			c.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}
			c.Annotations = map[string]string{annotation: ""}
			c.Status.AllocatedResourceStatuses = nil
		})
		r.volume.PV.Spec.Capacity = storage("1Gi")
		r.online() // the pod has had it since before
		r.volume.PV.Spec.Capacity = storage("2Gi")
		c := r.claim()
		c.Status.Capacity = storage("2Gi")
		if _, err := r.client.CoreV1().PersistentVolumeClaims("ns").UpdateStatus(t.Context(), c,
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		r.online()
		r.online()
		if len(r.grown) != want {
			t.Errorf("with the annotation %s it is grown %d times, want %d", annotation, len(r.grown), want)
		}
	}
}

func TestWhatTheClaimIsToldOfAFailure(t *testing.T) {
	boom := errors.New("boom")
	for name, c := range map[string]struct {
		answer error
		asked  string // what the user wants by now
		status v1.ClaimResourceStatus
		failed bool
		event  string
		again  int // how often the driver is called in two attempts
	}{
		"an unknown end":          {boom, "2Gi", progress, false, "VolumeResizeFailed", 2},
		"it has failed":           {As(ErrFinal, boom), "2Gi", progress, true, "VolumeResizeFailed", 2},
		"infeasible":              {As(ErrInfeasible, boom), "2Gi", infeasible, true, "VolumeResizeFailed", 1},
		"not while it is in use":  {As(ErrInUse, boom), "2Gi", progress, true, "", 1},
		"the user asks for less":  {As(ErrFinal, boom), "1500Mi", infeasible, true, "VolumeResizeFailed", 2},
		"of a driver that cannot": {As(ErrNotSupported, boom), "2Gi", progress, true, "VolumeResizeFailed", 2},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(claim *v1.PersistentVolumeClaim) { claim.Spec.Resources.Requests = storage(c.asked) })
			r.answer = c.answer
			r.online()
			r.online()
			claim := r.claim()
			if got := claim.Status.AllocatedResourceStatuses[v1.ResourceStorage]; got != c.status {
				t.Errorf("the claim is %s, want %s", got, c.status)
			}
			if got := slices.Contains(conditions(claim), "NodeResizeError"); got != c.failed {
				t.Errorf("conditions: %q", conditions(claim))
			}
			if events := r.newEvents(); len(events) > 0 != (c.event != "") || c.event != "" && events[0] !=
				`Warning VolumeResizeFailed NodeExpandVolume.NodeExpandVolume failed for volume "pv" : boom` {
				t.Errorf("events: %q", events)
			}
			if len(r.grown) != c.again {
				t.Errorf("the driver is called %d times, want %d", len(r.grown), c.again)
			}
			if claim.Status.Capacity.Storage().String() != "1Gi" {
				t.Errorf("the claim has %v", claim.Status.Capacity)
			}
		})
	}
}

// After the pods are gone, a volume that could not grow in use may.
func TestAVolumeThatWasInUseGrowsWhenAPodGetsItAnew(t *testing.T) {
	r := newRig(t, nil)
	r.answer = As(ErrInUse, errors.New("in use"))
	r.online()
	r.answer, r.grown = nil, nil
	r.newEvents()
	r.online()
	if len(r.grown) > 0 {
		t.Errorf("grown to %q while it is in use", r.grown)
	}
	r.Forget("pv")
	if err := r.mount(); err != nil {
		t.Fatal(err)
	}
	c := r.claim()
	if c.Status.Capacity.Storage().String() != "2Gi" || slices.Contains(conditions(c), "NodeResizeError") {
		t.Errorf("%v", c.Status)
	}
}

func TestAFailureKeepsAPodFromTheVolume(t *testing.T) {
	r := newRig(t, nil)
	r.answer = errors.New("boom")
	if err := r.mount(); !errors.Is(err, r.answer) {
		t.Errorf("%v", err)
	}
	if got := r.newEvents(); len(got) > 0 {
		t.Errorf("its own event besides that of the mount: %q", got)
	}
}

func TestReadOnly(t *testing.T) {
	r := newRig(t, nil)
	r.volume.ReadOnly = true
	r.online()
	if got := r.newEvents(); len(got) > 0 {
		t.Errorf("of a running pod: %q", got)
	}
	if err := r.mount(); err != nil {
		t.Error(err)
	}
	const event = `Warning FileSystemResizeFailed MountVolume.NodeExpandVolume failed for volume "pv" requested ` +
		`read-only file system`
	if got := r.newEvents(); !slices.Equal(got, []string{event, event}) || len(r.grown) > 0 {
		t.Errorf("events: %q, grown to %q", got, r.grown)
	}
}

// A change of the claim meanwhile is kept.
func TestAClaimThatChangesMeanwhileIsLeftAlone(t *testing.T) {
	r := newRig(t, func(c *v1.PersistentVolumeClaim) { c.ResourceVersion = "7" })
	var patches []string
	r.client.PrependReactor("patch", "persistentvolumeclaims",
		func(action clienttesting.Action) (bool, runtime.Object, error) {
			p := action.(clienttesting.PatchAction)
			patches = append(patches, fmt.Sprintf("%s %s", p.GetSubresource(), p.GetPatch()))
			return true, nil, errors.New("conflict")
		})
	r.online()
	if len(patches) != 1 || !strings.HasPrefix(patches[0], "status ") ||
		!strings.Contains(patches[0], `"resourceVersion":"7"`) {
		t.Errorf("patches: %q", patches)
	}
	if len(r.grown) > 0 {
		t.Errorf("grown to %q, although the claim could not be changed", r.grown)
	}
}

func TestTwoPodsOfAVolumeExpandItOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.volume.Claim = r.claim()
		goes, grow := make(chan struct{}), r.volume.Grow
		r.volume.Grow = func(ctx context.Context, size resource.Quantity) error {
			<-goes
			return grow(ctx, size)
		}
		done := make(chan error, 2)
		for range 2 {
			go func() { done <- r.DuringMount(t.Context(), r.volume) }()
		}
		synctest.Wait()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := r.DuringMount(ended, r.volume); err == nil {
			t.Error("a third does not wait")
		}
		close(goes)
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if len(r.grown) != 1 {
			t.Errorf("grown to %q", r.grown)
		}
	})
}
