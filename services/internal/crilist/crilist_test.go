package crilist

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubelettypes "k8s.io/kubelet/pkg/types"
)

// runtime has sandboxes with two containers each, and refuses lists of more than two items.
type runtime struct {
	grpc.ClientConnInterface

	sandboxes []*runtimeapi.PodSandbox
	calls     map[string]int // lists that were refused, by method
	// light: lists of containers may have any number of items.
	light bool
}

func newRuntime(uids ...string) *runtime {
	r := &runtime{calls: map[string]int{}}
	for i, uid := range uids {
		labels := map[string]string{}
		if uid != "" {
			labels[kubelettypes.KubernetesPodUIDLabel] = uid
		}
		r.sandboxes = append(r.sandboxes, &runtimeapi.PodSandbox{
			Id: fmt.Sprint("s", i), Labels: labels, State: runtimeapi.PodSandboxState(i % 2),
		})
	}
	return r
}

func fits[T any](r *runtime, method string, items []T) ([]T, error) {
	if len(items) > 2 && !(r.light && method == "containers") {
		r.calls[method]++
		return nil, status.Error(codes.ResourceExhausted, "trying to send message larger than max")
	}
	return items, nil
}

func (r *runtime) Invoke(_ context.Context, method string, args, reply any, _ ...grpc.CallOption) (err error) {
	switch q := args.(type) {
	case *runtimeapi.ListPodSandboxRequest:
		var found []*runtimeapi.PodSandbox
		for _, s := range r.sandboxes {
			f := q.GetFilter()
			uid := f.GetLabelSelector()[kubelettypes.KubernetesPodUIDLabel]
			if (f.GetId() == "" || f.GetId() == s.GetId()) &&
				(uid == "" || uid == s.GetLabels()[kubelettypes.KubernetesPodUIDLabel]) &&
				(f.GetState() == nil || f.GetState().GetState() == s.GetState()) {
				found = append(found, s)
			}
		}
		reply.(*runtimeapi.ListPodSandboxResponse).Items, err = fits(r, "sandboxes", found)
	case *runtimeapi.ListContainersRequest:
		var found []*runtimeapi.Container
		uid := q.GetFilter().GetLabelSelector()[kubelettypes.KubernetesPodUIDLabel]
		for _, s := range r.sandboxes {
			if uid == "" || uid == s.GetLabels()[kubelettypes.KubernetesPodUIDLabel] {
				r.each(cmp.Or(q.GetFilter().GetPodSandboxId(), s.GetId()), func(sandbox, id string) {
					if sandbox == s.GetId() {
						found = append(found, &runtimeapi.Container{Id: id, PodSandboxId: sandbox})
					}
				})
			}
		}
		reply.(*runtimeapi.ListContainersResponse).Containers, err = fits(r, "containers", found)
	case *runtimeapi.ListContainerStatsRequest:
		var found []*runtimeapi.ContainerStats
		r.each(q.GetFilter().GetPodSandboxId(), func(_, id string) {
			found = append(found, &runtimeapi.ContainerStats{Attributes: &runtimeapi.ContainerAttributes{Id: id}})
		})
		reply.(*runtimeapi.ListContainerStatsResponse).Stats, err = fits(r, "container_stats", found)
	case *runtimeapi.ListPodSandboxStatsRequest:
		var found []*runtimeapi.PodSandboxStats
		for _, s := range r.sandboxes {
			if id := q.GetFilter().GetId(); id == "" || id == s.GetId() {
				found = append(found, &runtimeapi.PodSandboxStats{
					Attributes: &runtimeapi.PodSandboxAttributes{Id: s.GetId()},
				})
			}
		}
		reply.(*runtimeapi.ListPodSandboxStatsResponse).Stats, err = fits(r, "sandbox_stats", found)
	default:
		err = status.Error(codes.Unimplemented, method)
	}
	return err
}

func (r *runtime) each(sandbox string, add func(sandbox, id string)) {
	for _, s := range r.sandboxes {
		if sandbox == "" || sandbox == s.GetId() {
			add(s.GetId(), s.GetId()+"-a")
			add(s.GetId(), s.GetId()+"-b")
		}
	}
}

func pods(uids ...string) func() ([]string, error) {
	return func() ([]string, error) { return uids, nil }
}

func TestLargeListsAreReadInParts(t *testing.T) {
	r := newRuntime("u1", "u2", "u3", "u1", "u1") // the three of u1 fit state by state only
	l := New(r, r, Options{Pods: pods("u1", "u2", "u3", "u4")})
	sandboxes, err := Collect(l.Sandboxes(t.Context(), nil))
	if err != nil || len(sandboxes) != 5 {
		t.Errorf("sandboxes: %v, %v", sandboxes, err)
	}
	containers, err := Collect(l.Containers(t.Context(), nil))
	if err != nil || len(containers) != 10 {
		t.Errorf("containers: %v, %v", containers, err)
	}
	figures, err := Collect(l.ContainerStats(t.Context(), nil))
	if err != nil || len(figures) != 10 {
		t.Errorf("figures of containers: %v, %v", figures, err)
	}
	of, err := Collect(l.SandboxStats(t.Context(), nil))
	if err != nil || len(of) != 5 {
		t.Errorf("figures of sandboxes: %v, %v", of, err)
	}
}

// A pod with a sandbox that ends again and again has many dead ones, each kept by an ended container.
func TestManyDeadSandboxesOfOnePod(t *testing.T) {
	r := newRuntime("u1", "u2", "u2", "u2", "u2", "u2", "u2", "u2", "u3")
	r.light = true
	l := New(r, r, Options{Pods: pods("u1", "u2", "u3")})
	sandboxes, err := Collect(l.Sandboxes(t.Context(), nil))
	if err != nil || len(sandboxes) != 9 {
		t.Errorf("sandboxes: %v, %v", sandboxes, err)
	}
	containers, err := Collect(l.Containers(t.Context(), nil))
	if err != nil || len(containers) != 18 {
		t.Errorf("containers: %v, %v", containers, err)
	}
	one, err := Collect(l.Sandboxes(t.Context(), &runtimeapi.PodSandboxFilter{
		LabelSelector: map[string]string{kubelettypes.KubernetesPodUIDLabel: "u2"},
	}))
	if err != nil || len(one) != 7 {
		t.Errorf("sandboxes of one pod: %v, %v", one, err)
	}
}

// A sandbox of a pod without a folder, and one without a pod, are known from the last list that came whole.
func TestWhatAWholeListHadIsInItsParts(t *testing.T) {
	r := newRuntime("u1", "")
	l := New(r, r, Options{Pods: pods("u2", "u3")})
	if all, err := Collect(l.Sandboxes(t.Context(), nil)); err != nil || len(all) != 2 {
		t.Fatalf("%v, %v", all, err)
	}
	r.sandboxes = append(r.sandboxes, newRuntime("", "", "u2", "u3").sandboxes[2:]...)
	all, err := Collect(l.Sandboxes(t.Context(), nil))
	var ids []string
	for _, s := range all {
		ids = append(ids, s.GetId())
	}
	if slices.Sort(ids); err != nil || !slices.Equal(ids, []string{"s0", "s1", "s2", "s3"}) {
		t.Errorf("%q, %v", ids, err)
	}
}

// Nothing may be concluded from a list that is not whole.
func TestAPartThatFailsFailsTheList(t *testing.T) {
	r := newRuntime("u1", "u2", "u2", "u2", "u2", "u2", "u2", "u2")
	broken := errors.New("no folder")
	for name, known := range map[string]func() ([]string, error){
		"a pod that is too large": pods("u1", "u2"),
		"no pods":                 func() ([]string, error) { return nil, broken },
	} {
		l := New(r, r, Options{Pods: known})
		if _, err := Collect(l.Sandboxes(t.Context(), nil)); err == nil {
			t.Errorf("%s: sandboxes are listed", name)
		}
		if _, err := Collect(l.Containers(t.Context(), nil)); err == nil {
			t.Errorf("%s: containers are listed", name)
		}
	}
	l := New(r, r, Options{Pods: pods("u1", "u2")})
	_, err := Collect(l.Sandboxes(t.Context(), nil))
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), `pod "u2"`) {
		t.Errorf("the error does not name the pod: %v", err)
	}
}

// A list that is too large costs the runtime one refusal a minute, and the log one line.
func TestALargeListIsAskedForOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		r, metrics := newRuntime("u1", "u2", "u3"), prometheus.NewRegistry()
		l := New(r, r, Options{
			Pods: pods("u1", "u2", "u3"), Metrics: metrics, Log: slog.New(slog.NewTextHandler(&log, nil)),
		})
		for range 120 {
			if all, err := Collect(l.Sandboxes(t.Context(), nil)); err != nil || len(all) != 3 {
				t.Fatalf("%v, %v", all, err)
			}
			time.Sleep(time.Second)
		}
		if lines := strings.Count(log.String(), "\n"); r.calls["sandboxes"] != 2 || lines != 2 {
			t.Errorf("%d refusals and %d lines in two minutes:\n%s", r.calls["sandboxes"], lines, &log)
		}
		if n := testutil.ToFloat64(l.tooLarge.WithLabelValues("sandboxes")); n != 120 {
			t.Errorf("%v lists in parts are counted", n)
		}
		time.Sleep(time.Minute)
		r.sandboxes = r.sandboxes[:2]
		if all, err := Collect(l.Sandboxes(t.Context(), nil)); err != nil || len(all) != 2 ||
			testutil.ToFloat64(l.tooLarge.WithLabelValues("sandboxes")) != 120 {
			t.Errorf("a list that fits again: %v, %v", all, err)
		}
	})
}
