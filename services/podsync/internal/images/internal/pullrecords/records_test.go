package pullrecords

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/microlet/microlet/services/podsync/internal/images/internal/keyring"
)

const (
	app = "registry.example/app:1"
	ref = "sha256:app"
)

// node has the records of one root folder.
type node struct {
	*testing.T
	*Records
	root   string
	policy kubeletv1beta1.ImagePullCredentialsVerificationPolicy
	allow  []string
	log    *strings.Builder
}

func newNode(t *testing.T, policy kubeletv1beta1.ImagePullCredentialsVerificationPolicy, allow ...string) *node {
	t.Helper()
	n := &node{T: t, root: t.TempDir(), policy: policy, allow: allow, log: &strings.Builder{}}
	n.restart()
	return n
}

// restart is a new podsync on the same node.
func (n *node) restart() {
	n.Helper()
	var err error
	n.Records, err = New(Options{
		RootDir: n.root, Policy: n.policy, Allowlist: n.allow, Log: slog.New(slog.NewTextHandler(n.log, nil)),
		Metrics: prometheus.NewRegistry(),
	})
	if err == nil {
		err = n.Open()
	}
	if err != nil {
		n.Fatal(err)
	}
}

// pull is one that succeeds.
func (n *node) pull(image, ref string, auth *keyring.Auth) {
	n.Helper()
	n.begin(image)
	n.Pulled(image, ref, auth)
}

func (n *node) begin(image string) {
	n.Helper()
	if err := n.Begin(image); err != nil {
		n.Fatal(err)
	}
}

// expect asks whether a pod with these credentials must pull the app.
func (n *node) expect(want bool, why string, auths ...keyring.Auth) {
	n.Helper()
	got, err := n.MustPull(app, ref, func() ([]keyring.Auth, error) { return auths, nil })
	if err != nil || got != want {
		n.Errorf("%s: must pull: %t, %v", why, got, err)
	}
}

// files are the names and contents below image_manager.
func (n *node) files() map[string]string {
	n.Helper()
	found := map[string]string{}
	for _, folder := range []string{"pulling", "pulled"} {
		entries, err := os.ReadDir(filepath.Join(n.root, "image_manager", folder))
		if err != nil {
			n.Fatal(err)
		}
		for _, e := range entries {
			data, err := os.ReadFile(filepath.Join(n.root, "image_manager", folder, e.Name()))
			if err != nil {
				n.Fatal(err)
			}
			found[folder+"/"+e.Name()] = string(data)
		}
	}
	return found
}

func secretAuth(name, password string) keyring.Auth {
	return keyring.Auth{Username: "u", Password: password,
		Owner: keyring.Owner{Kind: keyring.Secret, Namespace: "ns", Name: name, UID: "uid-" + name}}
}

func accountAuth(name string) keyring.Auth {
	return keyring.Auth{Username: "u", Password: "p",
		Owner: keyring.Owner{Kind: keyring.ServiceAccount, Namespace: "ns", Name: name, UID: "uid-" + name}}
}

// TestTheKubeletsFiles: their names and their form. The kubelet reads them after a handover, and refuses unknown
// fields.
func TestTheKubeletsFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, kubeletv1beta1.NeverVerifyPreloadedImages)
		n.begin(app)
		const pulling = "pulling/sha256-44026dc25579621c90d4ca974081985b6ef1ff7a58eb059c31ccd8368c6f55f3"
		intents := map[string]string{
			pulling: `{"kind":"ImagePullIntent","apiVersion":"kubelet.config.k8s.io/v1beta1",` +
				`"image":"registry.example/app:1"}` + "\n",
		}
		if diff := cmp.Diff(intents, n.files()); diff != "" {
			t.Errorf("while the pull runs (-want +got):\n%s", diff)
		}
		auth := secretAuth("regcred", "pw")
		n.Pulled(app, ref, &auth)
		records := map[string]string{
			"pulled/" + filepath.Base(n.pulled.path(ref)): `{"kind":"ImagePulledRecord",` +
				`"apiVersion":"kubelet.config.k8s.io/v1beta1","lastUpdatedTime":"2000-01-01T00:00:00Z",` +
				`"imageRef":"sha256:app","credentialMapping":{"registry.example/app":{"kubernetesSecrets":[` +
				`{"uid":"uid-regcred","namespace":"ns","name":"regcred","credentialHash":"` + auth.Hash() + `"}]}}}` + "\n",
		}
		if diff := cmp.Diff(records, n.files()); diff != "" {
			t.Errorf("after the pull (-want +got):\n%s", diff)
		}
	})
}

// TestWhoMayUseAnImage: the image was pulled with the credentials of one pod.
func TestWhoMayUseAnImage(t *testing.T) {
	n := newNode(t, kubeletv1beta1.NeverVerifyPreloadedImages)
	n.expect(false, "an image that was on the node before")
	regcred := secretAuth("regcred", "pw")
	n.pull(app, ref, &regcred)
	n.expect(true, "no credentials")
	n.expect(true, "the node's credentials", keyring.Auth{Username: "u", Password: "pw"})
	n.expect(true, "another secret with another password", secretAuth("other", "guess"))
	n.expect(true, "an account", accountAuth("web"))
	n.expect(false, "the secret", secretAuth("other", "guess"), regcred)
	n.expect(false, "the same credential in another secret", secretAuth("copy", "pw"))
	n.expect(false, "the secret with a new password", secretAuth("regcred", "new"))
	n.restart()
	n.expect(false, "the new password, which was learned, in another secret", secretAuth("third", "new"))
	n.expect(false, "the copy, which was learned, with a new password", secretAuth("copy", "newer"))
	renamed := secretAuth("regcred", "newest")
	renamed.Owner.UID = "another"
	n.expect(true, "a new secret of the same name", renamed)
	if must, err := n.MustPull("mirror.example/app:1", ref, func() ([]keyring.Auth, error) {
		return []keyring.Auth{regcred}, nil
	}); !must || err != nil {
		t.Errorf("the same image by another name: %t, %v", must, err)
	}

	web := accountAuth("web")
	n.pull(app, ref, &web)
	n.expect(false, "the account", web)
	n.expect(false, "the secret as before", regcred)
	n.expect(true, "another account", accountAuth("other"))
	n.pull(app, ref, nil)
	n.expect(false, "an image that was pulled without credentials")
	n.pull(app, ref, &regcred)
	n.expect(false, "an image that was once pulled without credentials")
}

func TestPolicies(t *testing.T) {
	for _, test := range []struct {
		policy            kubeletv1beta1.ImagePullCredentialsVerificationPolicy
		allow             []string
		preloaded, pulled bool // whether each must be pulled
	}{
		{policy: kubeletv1beta1.NeverVerify},
		{policy: kubeletv1beta1.NeverVerifyPreloadedImages, pulled: true},
		{policy: kubeletv1beta1.AlwaysVerify, preloaded: true, pulled: true},
		{policy: kubeletv1beta1.NeverVerifyAllowlistedImages, preloaded: true, pulled: true},
		{policy: kubeletv1beta1.NeverVerifyAllowlistedImages, allow: []string{"registry.example/app"}},
		{policy: kubeletv1beta1.NeverVerifyAllowlistedImages, allow: []string{"registry.example/*"}},
		{policy: kubeletv1beta1.NeverVerifyAllowlistedImages, allow: []string{"registry.example/ap"}, preloaded: true,
			pulled: true},
	} {
		n := newNode(t, test.policy, test.allow...)
		why := fmt.Sprintf("%s %q", test.policy, test.allow)
		n.expect(test.preloaded, why+", preloaded")
		n.pull(app, ref, new(secretAuth("regcred", "pw")))
		n.expect(test.pulled, why+", pulled")
	}
}

func TestAllowlist(t *testing.T) {
	for pattern, want := range map[string]string{
		" a":                     "leading/trailing spaces are not allowed:  a",
		"":                       "the supplied pattern is too short: ",
		"a*/b":                   "not a valid wildcard pattern, only patterns ending with '/*' are allowed: a*/b",
		"*":                      "not a valid wildcard pattern, only patterns ending with '/*' are allowed: *",
		"/*":                     "at least registry hostname is required",
		"UPPER":                  "failed to parse as an image name: ",
		"registry.example/a:1":   "neither tag nor digest is accepted in an image reference: registry.example/a:1",
		"registry.example/a/*":   "",
		"registry.example:5/a":   "",
		"a@sha256:" + zeroes(64): "neither tag nor digest is accepted in an image reference: a@sha256:" + zeroes(64),
	} {
		err := Check(kubeletv1beta1.NeverVerifyAllowlistedImages, []string{pattern})
		got := ""
		if err != nil {
			got = strings.TrimPrefix(err.Error(), "invalid image pattern in `preloadedImagesVerificationAllowlist`: ")
		}
		if pattern == "UPPER" {
			got, _, _ = strings.Cut(got, "repository") // what follows is the library's
		}
		if got != want {
			t.Errorf("%q: %q, want %q", pattern, got, want)
		}
	}
	if err := Check("Sometimes", nil); err == nil {
		t.Error("an unknown policy is taken")
	}
}

func zeroes(n int) string { return strings.Repeat("0", n) }

func TestRepositoryOf(t *testing.T) {
	for image, want := range map[string]string{
		"busybox": "busybox", "busybox:1": "busybox", "r.example:5000/a/b": "r.example:5000/a/b",
		"r.example:5000/a:1@sha256:" + zeroes(64): "r.example:5000/a", "a@sha256:" + zeroes(64): "a",
	} {
		if got, err := repositoryOf(image); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", image, got, err, want)
		}
	}
}

// images are the runtime's: references by name.
type images map[string]string

func (i images) ImageRefs(context.Context) ([]string, error) {
	if _, broken := i["broken"]; broken {
		return nil, errors.New("no answer")
	}
	return slices.Collect(maps.Values(i)), nil
}

func (i images) ImageRef(_ context.Context, image string) (string, error) {
	if _, broken := i["broken"]; broken {
		return "", errors.New("no answer")
	}
	return i[image], nil
}

// TestAPullWithoutAnEnd: podsync was killed meanwhile, or the pull was given up. The image does not become everyone's,
// whatever fails afterwards.
func TestAPullWithoutAnEnd(t *testing.T) {
	for how, lose := range map[string]func(*node){
		"killed":   func(n *node) { n.restart() },
		"given up": func(n *node) { n.Lost(app) },
	} {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t, kubeletv1beta1.NeverVerifyPreloadedImages)
			n.begin(app)
			n.expect(true, how+", while it runs")
			lose(n)
			n.expect(true, how)
			n.begin(app)
			n.Failed(app)
			n.expect(true, how+", and another pull failed")
			if err := n.tidy(t.Context(), images{app: ref}); err != nil {
				t.Error(err)
			}
			n.expect(true, how+", and the image is there")
			if got := slices.Collect(maps.Keys(n.files())); len(got) != 1 || !strings.HasPrefix(got[0], "pulled/") {
				t.Errorf("%s: the files are %q", how, got)
			}
			n.pull(app, ref, new(secretAuth("regcred", "pw")))
			n.expect(false, how+", and pulled again", secretAuth("regcred", "pw"))
		})
	}
}

func TestAPullWithoutAnEndOrImage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, kubeletv1beta1.NeverVerifyPreloadedImages)
		n.begin(app)
		n.Lost(app)
		step := func(there images, left int) {
			t.Helper()
			_ = n.tidy(t.Context(), there)
			if got := len(n.files()); got != left {
				t.Errorf("%d files are left, want %d", got, left)
			}
		}
		step(images{}, 1) // the runtime may still be at it
		time.Sleep(settleAfter)
		step(images{"broken": ""}, 1)
		n.begin(app)
		step(images{}, 1)
		n.Failed(app)
		step(images{}, 0)
		n.expect(false, "an image that was loaded by hand later")
	})
}

func TestPullsOfOneImage(t *testing.T) {
	n := newNode(t, kubeletv1beta1.NeverVerifyPreloadedImages)
	n.begin(app)
	n.begin(app)
	n.Failed(app)
	if got := len(n.files()); got != 1 {
		t.Errorf("%d files while one pull runs", got)
	}
	n.Failed(app)
	if got := len(n.files()); got != 0 {
		t.Errorf("%d files after both have failed", got)
	}
}

// TestRecordsGoWithTheirImages: but not while the runtime does not answer, nor those of images newer than its answer.
func TestRecordsGoWithTheirImages(t *testing.T) {
	n := newNode(t, kubeletv1beta1.NeverVerifyPreloadedImages)
	regcred := secretAuth("regcred", "pw")
	n.pull(app, ref, &regcred)
	n.pull("other:1", "sha256:other", &regcred)
	if err := n.tidy(t.Context(), images{"broken": ""}); err == nil || len(n.files()) != 2 {
		t.Errorf("%v, and %d records are left", err, len(n.files()))
	}
	during := &hooked{images: images{"other:1": "sha256:other"}, hook: func() { n.pull(app, ref, &regcred) }}
	if err := n.tidy(t.Context(), during); err != nil || len(n.files()) != 2 {
		t.Errorf("pulled again meanwhile: %v, and %d records are left", err, len(n.files()))
	}
	if err := n.tidy(t.Context(), images{"other:1": "sha256:other"}); err != nil || len(n.files()) != 1 {
		t.Errorf("%v, and %d records are left", err, len(n.files()))
	}
	n.expect(false, "an image that is on the node again, without a pull")
	if got := testutil.ToFloat64(n.metrics.records); got != 1 {
		t.Errorf("%v records are counted", got)
	}
}

// hooked are images that something happens to while they are listed.
type hooked struct {
	images
	hook func()
}

func (h *hooked) ImageRefs(ctx context.Context) ([]string, error) {
	defer h.hook()
	return h.images.ImageRefs(ctx)
}

func TestTidyEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, kubeletv1beta1.NeverVerifyPreloadedImages)
		n.pull(app, ref, nil)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		there := &hooked{images: images{app: ref}}
		there.hook = func() { delete(there.images, app) } // once it is listed
		go func() { done <- n.Tidy(ctx, there) }()
		synctest.Wait()
		if got := len(n.files()); got == 0 {
			t.Error("the record is gone before its image is")
		}
		time.Sleep(tidyEvery)
		synctest.Wait()
		if got := len(n.files()); got != 0 {
			t.Errorf("%d records are left", got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestUnreadableRecords: each requires a pull, which replaces the record.
func TestUnreadableRecords(t *testing.T) {
	record := func(version, more string) string {
		return `{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/` + version +
			`","lastUpdatedTime":"2026-01-01T00:00:00Z","imageRef":"` + ref +
			`","credentialMapping":{"registry.example/app":{"nodePodsAccessible":true}}` + more + `}`
	}
	for data, must := range map[string]bool{
		record("v1beta1", ""): false, record("v1alpha1", ""): false, // as older kubelets write it
		record("v1beta1", `,"new":1`): true, record("v2", ""): true, "": true, "{": true,
		`{"kind":"ImagePullIntent","apiVersion":"kubelet.config.k8s.io/v1beta1","image":"a"}`: true,
	} {
		n := newNode(t, kubeletv1beta1.NeverVerifyPreloadedImages)
		if err := os.WriteFile(n.pulled.path(ref), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
		n.expect(must, data)
		n.pull(app, ref, new(secretAuth("regcred", "pw")))
		n.expect(false, data+", pulled again", secretAuth("regcred", "pw"))
	}
}

func TestCredentialsThatCannotBeRead(t *testing.T) {
	n := newNode(t, kubeletv1beta1.NeverVerifyPreloadedImages)
	n.pull(app, ref, new(secretAuth("regcred", "pw")))
	broken := errors.New("broken")
	must, err := n.MustPull(app, ref, func() ([]keyring.Auth, error) { return nil, broken })
	if !must || !errors.Is(err, broken) {
		t.Errorf("must pull: %t, %v", must, err)
	}
	if got := testutil.ToFloat64(n.metrics.checks.WithLabelValues(resultError)); got != 1 {
		t.Errorf("%v errors are counted", got)
	}
}

// TestLearnedSecretsAreBounded: a full record still matches a credential, and forgets none.
func TestLearnedSecretsAreBounded(t *testing.T) {
	full := credentials{}
	for i := range maxLearned {
		full.KubernetesSecrets = append(full.KubernetesSecrets, secretOf(new(secretAuth(fmt.Sprint(i), fmt.Sprint(i)))))
	}
	for _, test := range []struct {
		auth keyring.Auth
		want bool
	}{{secretAuth("new", "7"), true}, {secretAuth("7", "7"), true}, {secretAuth("7", "new"), false}} {
		if ok, learned := matches(full, []keyring.Auth{test.auth}); ok != test.want || learned != nil {
			t.Errorf("%v: %t, learned %v", test.auth, ok, learned)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"kind":"ImagePullIntent","apiVersion":"kubelet.config.k8s.io/v1beta1","image":"a"}`))
	f.Add([]byte(`{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1alpha1","imageRef":"a"}`))
	path := filepath.Join(f.TempDir(), "record")
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if object, err := decode(path); (object == nil) == (err == nil) {
			t.Errorf("got %v, %v", object, err)
		}
	})
}
