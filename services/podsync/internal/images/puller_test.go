package images

import (
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
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/microlet/microlet/services/internal/testing/fake"
	"github.com/microlet/microlet/services/podsync/internal/cri/runtime"
)

var _ Runtime = (*runtime.Runtime)(nil)

const app = "registry.example/app:1"

// bench is a Puller on a fake runtime, with the events it sent.
type bench struct {
	*testing.T
	fake   *fake.Runtime
	puller *Puller
	events *record.FakeRecorder
}

func newBench(t *testing.T, opts pullerOptions) *bench {
	t.Helper()
	b := &bench{T: t, fake: fake.NewRuntime(nil), events: record.NewFakeRecorder(1000)}
	rt, err := runtime.New(b.fake.Conn(), b.fake.Conn(), runtime.Options{})
	if err != nil {
		t.Fatal(err)
	}
	opts.Runtime, opts.Events, opts.Log = rt, b.events, slog.New(slog.DiscardHandler)
	if opts.Records == nil {
		opts.Records = newRecords(t, t.TempDir(), kubeletv1beta1.NeverVerifyPreloadedImages)
	}
	if b.puller, err = newPuller(opts); err != nil {
		t.Fatal(err)
	}
	return b
}

func podOf(name, image string, policy v1.PullPolicy) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "app", Image: image, ImagePullPolicy: policy}}},
	}
}

func (b *bench) ensure(ctx context.Context, name, image string, policy v1.PullPolicy,
	secrets ...v1.Secret) (string, error) {
	p := podOf(name, image, policy)
	return b.puller.Ensure(ctx, p, &p.Spec.Containers[0], nil, secrets)
}

// said returns the events since it was asked last.
func (b *bench) said() []string {
	var events []string
	for {
		select {
		case e := <-b.events.Events:
			events = append(events, e)
		default:
			return events
		}
	}
}

func (b *bench) expectEvents(want ...string) {
	b.Helper()
	if got := b.said(); !slices.Equal(got, want) {
		b.Errorf("events:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func (b *bench) expectError(err error, reason, message string) {
	b.Helper()
	var shown *Error
	if !errors.As(err, &shown) || shown.Reason != reason || shown.Message != message {
		b.Errorf("got %v, want %s: %s", err, reason, message)
	}
}

func TestPolicies(t *testing.T) {
	pulling := `Normal Pulling Pulling image "` + app + `"`
	pulled := `Normal Pulled Successfully pulled image "` + app +
		`" in 2s (2s including waiting). Image size: 5242880 bytes.`
	present := `Normal Pulled Container image "` + app + `" already present on machine and can be accessed by the pod`
	for _, test := range []struct {
		policy  v1.PullPolicy
		present bool
		want    []string
		reason  string
	}{
		{policy: v1.PullAlways, want: []string{pulling, pulled}},
		{policy: v1.PullAlways, present: true, want: []string{pulling, pulled}},
		{policy: v1.PullIfNotPresent, want: []string{pulling, pulled}},
		{policy: v1.PullIfNotPresent, present: true, want: []string{present}},
		{policy: "", present: true, want: []string{present}},
		{policy: v1.PullNever, present: true, want: []string{present}},
		{policy: v1.PullNever, reason: ReasonNeverPull, want: []string{
			`Warning ErrImageNeverPull Container image "` + app + `" is not present with pull policy of Never`,
			"Warning Failed Error: ErrImageNeverPull",
		}},
	} {
		t.Run(fmt.Sprintf("%s/%t", test.policy, test.present), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, pullerOptions{Serial: true})
				b.fake.SetPull(app, fake.Pull{Duration: 2 * time.Second})
				if test.present {
					b.fake.AddImage(app)
				}
				ref, err := b.ensure(t.Context(), "web", app, test.policy)
				if test.reason == "" && (err != nil || ref == "") {
					t.Errorf("got %q, %v", ref, err)
				}
				if test.reason != "" {
					b.expectError(err, test.reason,
						`Container image "`+app+`" is not present with pull policy of Never`)
				}
				b.expectEvents(test.want...)
			})
		})
	}
}

func TestBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, pullerOptions{Serial: true})
		b.fake.SetPull(app, fake.Pull{Err: status.Error(codes.NotFound, "manifest unknown")})
		words := "rpc error: code = NotFound desc = manifest unknown"
		for _, wait := range []time.Duration{10, 20, 40, 80, 160, 300, 300} {
			wait *= time.Second
			_, err := b.ensure(t.Context(), "web", app, v1.PullIfNotPresent)
			b.expectError(err, ReasonPull, words)
			b.expectEvents(
				`Normal Pulling Pulling image "`+app+`"`,
				`Warning Failed Failed to pull image "`+app+`": `+words,
				"Warning Failed Error: ErrImagePull",
			)
			until, last, held := b.puller.BackOff(podOf("web", app, "").UID, app)
			if want := time.Now().Add(wait); !held || !until.Equal(want) || last != "ErrImagePull: "+words {
				t.Errorf("held %v until %v (%q), want until %v", held, until, last, want)
			}
			time.Sleep(wait - time.Second)
			_, err = b.ensure(t.Context(), "web", app, v1.PullIfNotPresent)
			b.expectError(err, ReasonBackOff, `Back-off pulling image "`+app+`": ErrImagePull: `+words)
			b.expectEvents(`Normal BackOff Back-off pulling image "`+app+`"`, "Warning Failed Error: ImagePullBackOff")
			time.Sleep(time.Second)
		}
		// Another pod with the same image does not wait for this one's back-off.
		if _, err := b.ensure(t.Context(), "web", app, v1.PullIfNotPresent); err == nil {
			t.Error("the image is there")
		}
		b.fake.SetPull(app, fake.Pull{})
		if _, err := b.ensure(t.Context(), "other", app, v1.PullIfNotPresent); err != nil {
			t.Error(err)
		}
	})
}

func TestReasonsOfTheRuntime(t *testing.T) {
	for text, want := range map[string]Error{
		"RegistryUnavailable: connection refused": {"RegistryUnavailable", "image pull failed for " + app +
			" because the registry is unavailable: connection refused"},
		"SignatureValidationFailed: no key": {"SignatureValidationFailed", "image pull failed for " + app +
			" because the signature validation failed: no key"},
		"no space left on device": {ReasonPull, "no space left on device"},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, pullerOptions{})
			b.fake.SetPull(app, fake.Pull{Err: errors.New(text)})
			_, err := b.ensure(t.Context(), "web", app, v1.PullAlways)
			b.expectError(err, want.Reason, want.Message)
		})
	}
}

func TestInvalidName(t *testing.T) {
	b := newBench(t, pullerOptions{})
	_, err := b.ensure(t.Context(), "web", "Not A Name", v1.PullAlways)
	b.expectError(err, ReasonInvalidName,
		`Failed to apply default image tag "Not A Name": couldn't parse image name "Not A Name": invalid reference format: repository name (library/Not A Name) must be lowercase`)
	if events := b.said(); len(events) != 2 || !strings.HasPrefix(events[0], "Warning InspectFailed Failed to apply") {
		t.Errorf("events %v", events)
	}
	if calls := b.fake.Calls(); len(calls) != 0 {
		t.Errorf("the runtime was asked %v", calls)
	}
}

func TestInspectError(t *testing.T) {
	b := newBench(t, pullerOptions{})
	b.fake.Fail("ImageStatus", status.Error(codes.Internal, "broken"))
	_, err := b.ensure(t.Context(), "web", app, v1.PullIfNotPresent)
	b.expectError(err, ReasonInspect, `Failed to inspect image "`+app+`": rpc error: code = Internal desc = broken`)
}

func TestSerialAndParallel(t *testing.T) {
	two := int32(2)
	for name, test := range map[string]struct {
		opts pullerOptions
		peak int
		last time.Duration
	}{
		"serial":      {pullerOptions{Serial: true}, 1, 5 * time.Second},
		"two":         {pullerOptions{MaxParallel: &two}, 2, 3 * time.Second},
		"no bound":    {pullerOptions{}, 5, time.Second},
		"zero is all": {pullerOptions{MaxParallel: new(int32)}, 5, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, test.opts)
				begun := time.Now()
				done := make(chan error)
				for i := range 5 {
					image := fmt.Sprintf("registry.example/app:%d", i)
					b.fake.SetPull(image, fake.Pull{Duration: time.Second})
					go func() {
						_, err := b.ensure(t.Context(), fmt.Sprint("web", i), image, v1.PullAlways)
						done <- err
					}()
				}
				for range 5 {
					if err := <-done; err != nil {
						t.Error(err)
					}
				}
				if peak := b.fake.Peak("PullImage"); peak != test.peak || time.Since(begun) != test.last {
					t.Errorf("%d at once, all after %v; want %d, %v", peak, time.Since(begun), test.peak, test.last)
				}
			})
		})
	}
}

func TestWhoWaitedLooksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, pullerOptions{Serial: true})
		b.fake.SetPull(app, fake.Pull{Duration: time.Minute})
		done := make(chan error)
		for i := range 10 {
			go func() {
				_, err := b.ensure(t.Context(), fmt.Sprint("web", i), app, v1.PullIfNotPresent)
				done <- err
			}()
		}
		for range 10 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if n := len(b.fake.Calls("PullImage")); n != 1 {
			t.Errorf("%d pulls of one image", n)
		}
	})
}

func TestAHungPullStopsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, pullerOptions{Serial: true})
		b.fake.SetPull("registry.example/hung:1", fake.Pull{Hang: true})
		ctx, cancel := context.WithCancel(t.Context())
		hung, waiting, other := make(chan error, 1), make(chan error, 1), make(chan error, 1)
		go func() {
			_, err := b.ensure(ctx, "hung", "registry.example/hung:1", v1.PullAlways)
			hung <- err
		}()
		synctest.Wait()
		waitCtx, stopWaiting := context.WithCancel(t.Context())
		go func() {
			_, err := b.ensure(waitCtx, "waiting", app, v1.PullAlways)
			waiting <- err
		}()
		synctest.Wait()
		go func() {
			_, err := b.ensure(t.Context(), "other", app, v1.PullAlways)
			other <- err
		}()
		synctest.Wait()
		// A present image is not behind a hung pull.
		b.fake.AddImage("registry.example/here:1")
		if _, err := b.ensure(t.Context(), "here", "registry.example/here:1", v1.PullIfNotPresent); err != nil {
			t.Error(err)
		}
		b.said()
		stopWaiting()
		if err := <-waiting; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		cancel()
		if err := <-hung; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		if err := <-other; err != nil {
			t.Error(err)
		}
		for _, e := range b.said() {
			if strings.Contains(e, "Failed") {
				t.Errorf("a cancelled pull was reported as a failure: %s", e)
			}
		}
		// And it is not in back-off.
		b.fake.SetPull("registry.example/hung:1", fake.Pull{})
		if _, err := b.ensure(t.Context(), "hung", "registry.example/hung:1", v1.PullAlways); err != nil {
			t.Error(err)
		}
	})
}

// TestPullsThatNeverEndKeepNoOtherWaitingForLong: a pod names an image of a registry that never sends it to the end.
func TestPullsThatNeverEndKeepNoOtherWaitingForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, pullerOptions{Serial: true})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		const hung = 20
		for i := range hung {
			image := fmt.Sprintf("registry.example/hung:%d", i)
			b.fake.SetPull(image, fake.Pull{Hang: true})
			go func() {
				p := podOf(fmt.Sprint("hung", i), image, v1.PullAlways)
				p.Namespace = "many"
				_, _ = b.puller.Ensure(ctx, p, &p.Spec.Containers[0], nil, nil)
				done <- struct{}{}
			}()
			synctest.Wait()
		}
		for i := range 2 {
			began := time.Now()
			if _, err := b.ensure(t.Context(), fmt.Sprint("other", i), app, v1.PullAlways); err != nil {
				t.Error(err)
			}
			if took := time.Since(began); took > slotTime {
				t.Errorf("a pull of another namespace took %v", took)
			}
		}
		cancel()
		for range hung {
			<-done
		}
	})
}

func TestPullsAreNoFasterThanTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, pullerOptions{QPS: 5, Burst: 10})
		for i := range 11 {
			_, err := b.ensure(t.Context(), fmt.Sprint("web", i), app, v1.PullAlways)
			if i < 10 && err != nil {
				t.Errorf("pull %d: %v", i, err)
			}
			if i == 10 {
				b.expectError(err, ReasonPull, "pull QPS exceeded")
			}
		}
		time.Sleep(200 * time.Millisecond)
		if _, err := b.ensure(t.Context(), "later", app, v1.PullAlways); err != nil {
			t.Error(err)
		}
	})
}

func TestCredentialsAreTriedInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, pullerOptions{})
		var seen []string
		b.fake.SetPull(app, fake.Pull{Auth: func(a *runtimeapi.AuthConfig) error {
			seen = append(seen, a.GetUsername())
			if a.GetPassword() != "right" {
				return status.Error(codes.Unknown, "denied to "+a.GetUsername())
			}
			return nil
		}})
		if _, err := b.ensure(t.Context(), "web", app, v1.PullAlways, secretOf("old", "wrong"),
			secretOf("new", "right")); err != nil {
			t.Error(err)
		}
		if !slices.Equal(seen, []string{"old", "new"}) {
			t.Errorf("tried %v", seen)
		}
		_, err := b.ensure(t.Context(), "other", app, v1.PullAlways, secretOf("old", "wrong"), secretOf("older", "wrong"))
		b.expectError(err, ReasonPull, "[denied to old, denied to older]")
		_, err = b.ensure(t.Context(), "none", app, v1.PullAlways)
		b.expectError(err, ReasonPull, "denied to ")
	})
}

func TestABrokenSecretIsTold(t *testing.T) {
	b := newBench(t, pullerOptions{})
	_, err := b.ensure(t.Context(), "web", app, v1.PullAlways, v1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "broken"}, Type: v1.SecretTypeDockercfg,
		Data: map[string][]byte{v1.DockerConfigKey: []byte("{")},
	})
	b.expectError(err, ReasonPull, "image pull secret default/broken: it is not the JSON of a docker configuration")
}

func TestWhatTheRuntimeIsAsked(t *testing.T) {
	b := newBench(t, pullerOptions{})
	p := podOf("web", "busybox", "")
	p.Annotations = map[string]string{"a": "b"}
	sandbox := &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Uid: "u"}}
	if _, err := b.puller.EnsureRequest(t.Context(),
		Request{Pod: p, Container: &p.Spec.Containers[0], Sandbox: sandbox, Handler: "kata"}); err != nil {
		t.Fatal(err)
	}
	calls := b.fake.Calls("PullImage")
	if len(calls) != 1 {
		t.Fatalf("%d pulls", len(calls))
	}
	req := calls[0].Request.(*runtimeapi.PullImageRequest)
	if req.Image.Image != "busybox:latest" || req.Image.RuntimeHandler != "kata" || req.Image.Annotations["a"] != "b" ||
		req.Auth != nil || req.SandboxConfig.GetMetadata().GetUid() != "u" {
		t.Fatalf("asked %v", req)
	}
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	b := newBench(t, pullerOptions{Metrics: reg})
	if _, err := b.ensure(t.Context(), "web", app, v1.PullIfNotPresent); err != nil {
		t.Fatal(err)
	}
	want := `
# HELP kubelet_image_manager_ensure_image_requests_total Number of ensure-image requests processed by the kubelet.
# TYPE kubelet_image_manager_ensure_image_requests_total counter
kubelet_image_manager_ensure_image_requests_total{present_locally="false",pull_policy="ifnotpresent",pull_required="true"} 1
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want),
		"kubelet_image_manager_ensure_image_requests_total"); err != nil {
		t.Error(err)
	}
	for size, want := range map[uint64]string{
		0:          "N/A",
		1:          "0-10MB",
		10 * mib:   "0-10MB",
		10*mib + 1: "10MB-100MB",
		2 * gib:    "1GB-5GB",
		200 * gib:  "GT100GB",
	} {
		if got := sizeBucket(size); got != want {
			t.Errorf("%d: got %s, want %s", size, got, want)
		}
	}
}

func TestOptionsAreChecked(t *testing.T) {
	b := newBench(t, pullerOptions{})
	minus := int32(-1)
	for _, opts := range []pullerOptions{{}, {QPS: -1}, {QPS: 5}, {MaxParallel: &minus}} {
		opts.Runtime, opts.Events = b.puller.opts.Runtime, b.events
		if opts.QPS == 0 && opts.MaxParallel == nil {
			opts.Runtime = nil
		}
		if _, err := newPuller(opts); err == nil {
			t.Errorf("%+v was taken", opts)
		}
	}
}

// TestImageVolumes: events are about the pod, and the container that mounts the volume reports the error.
func TestImageVolumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, pullerOptions{})
		p := podOf("web", app, "")
		p.Annotations = map[string]string{"a": "b"}
		ref, err := b.puller.EnsureVolume(t.Context(), p, &v1.ImageVolumeSource{Reference: app}, nil)
		if err != nil || ref == "" {
			t.Fatalf("%q, %v", ref, err)
		}
		b.said()
		again, err := b.puller.EnsureVolume(t.Context(), p, &v1.ImageVolumeSource{Reference: app,
			PullPolicy: v1.PullNever}, nil)
		if err != nil || again != ref {
			t.Errorf("%q, %v", again, err)
		}
		b.expectEvents(`Normal Pulled Container image "` + app + `" already present on machine and can be accessed by the pod`)
		_, err = b.puller.EnsureVolume(t.Context(), p, &v1.ImageVolumeSource{Reference: "absent",
			PullPolicy: v1.PullNever}, nil)
		b.expectError(err, ReasonNeverPull, `Container image "absent" is not present with pull policy of Never`)
		b.expectEvents(`Warning ErrImageNeverPull Container image "absent" is not present with pull policy of Never`)
	})
}

// TestAnImageThatFillsLists is not kept: the runtime has the name of its user in each list of all images.
func TestAnImageThatFillsLists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for user, refused := range map[string]bool{
			strings.Repeat("u", maxUser): false, strings.Repeat("u", maxUser+1): true, strings.Repeat("u", 17<<20): true,
		} {
			b := newBench(t, pullerOptions{})
			b.fake.SetPull(app, fake.Pull{User: user})
			_, err := b.ensure(t.Context(), "web", app, v1.PullIfNotPresent)
			found, _ := b.puller.opts.Runtime.ImageStatus(t.Context(), &runtimeapi.ImageSpec{Image: app})
			var shown *Error
			if !refused && (err != nil || found == nil) {
				t.Errorf("a user of %d bytes: %v", len(user), err)
			}
			if refused && (!errors.As(err, &shown) || shown.Reason != ReasonPull || len(shown.Message) > 200 || found != nil) {
				t.Errorf("a user of %d bytes: %.300v, present: %t", len(user), err, found != nil)
			}
		}
	})
}
