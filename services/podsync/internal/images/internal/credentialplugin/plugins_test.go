package credentialplugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/internal/testing/proctest"
	"github.com/microlet/microlet/services/podsync/internal/images/internal/keyring"
)

const (
	image = "registry.example/app"
	// answer is of a plugin that says what it was asked, in the password.
	answer = `printf '{"apiVersion":"credentialprovider.kubelet.k8s.io/v1","kind":"CredentialProviderResponse",
		"cacheKeyType":"%s","cacheDuration":"%s","auth":{"*.example":{"username":"%s","password":"%s"}}}' `
)

// accounts has one service account, with this annotation.
type accounts struct {
	annotations map[string]string
	token       string
	err         error
	requests    []authenticationv1.TokenRequest
}

func (a *accounts) Account(_ context.Context, namespace, name string) (*v1.ServiceAccount, error) {
	return &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name, UID: types.UID("uid-" + name), Annotations: a.annotations,
	}}, a.err
}

func (a *accounts) Token(_ context.Context, _, account string, request *authenticationv1.TokenRequest) (
	*authenticationv1.TokenRequest, error) {
	a.requests = append(a.requests, *request)
	return &authenticationv1.TokenRequest{Status: authenticationv1.TokenRequestStatus{
		Token: a.token + account,
	}}, a.err
}

// bench has the plugin cred. Each of its runs leaves a line in a file.
type bench struct {
	*testing.T
	*Plugins
	accounts accounts
	registry *prometheus.Registry
	log      strings.Builder
	runs     string
}

func newBench(t *testing.T, config, script string) *bench {
	t.Helper()
	b := &bench{T: t, registry: prometheus.NewRegistry(), runs: filepath.Join(t.TempDir(), "runs")}
	dir := bin(t, "cat >> "+b.runs+"\n"+script)
	c, err := Load(write(t, filepath.Join(t.TempDir(), "c.yaml"), config, 0o600), dir, true)
	if err != nil {
		t.Fatal(err)
	}
	b.Plugins, err = New(Options{
		Config: c, BinDir: dir, Accounts: &b.accounts, Log: slog.New(slog.NewTextHandler(&b.log, nil)), Metrics: b.registry,
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func podOf(account string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "uid"},
		Spec:       v1.PodSpec{ServiceAccountName: account},
	}
}

// passwords returns those that a pod of the account gets.
func (b *bench) passwords(image, account string) []string {
	b.Helper()
	auths, err := b.Lookup(b.Context(), image, podOf(account))
	if err != nil {
		b.Fatal(err)
	}
	var found []string
	for _, a := range auths {
		found = append(found, a.Password)
	}
	return found
}

// ran returns what the plugin was asked each time.
func (b *bench) ran() []string {
	b.Helper()
	data, err := os.ReadFile(b.runs)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		b.Fatal(err)
	}
	return strings.FieldsFunc(string(data), func(r rune) bool { return r == '\n' })
}

func TestAPluginIsAsked(t *testing.T) {
	t.Setenv("REGION", "south")
	b := newBench(t, valid, answer+`Image 1m "$1 $2" "$REGION"`)
	auths, err := b.Lookup(t.Context(), image, podOf("web"))
	want := []keyring.Auth{{Username: "get --now", Password: "north"}}
	if err != nil || !slices.Equal(auths, want) {
		t.Errorf("got %+v, %v, want %+v", auths, err, want)
	}
	request := `{"kind":"CredentialProviderRequest","apiVersion":"credentialprovider.kubelet.k8s.io/v1",` +
		`"image":"registry.example/app"}`
	if got := b.ran(); !slices.Equal(got, []string{request}) {
		t.Errorf("it was asked %q", got)
	}
	if got := b.passwords("elsewhere.example/app", ""); got != nil || len(b.ran()) != 1 {
		t.Errorf("an image that is not its own: %q, after %d runs", got, len(b.ran()))
	}
	if n := testutil.CollectAndCount(b.registry, "kubelet_credential_provider_config_info"); n != 1 {
		t.Errorf("%d hashes of the configuration", n)
	}
	if n := testutil.CollectAndCount(b.registry, "kubelet_credential_provider_plugin_duration"); n != 1 {
		t.Errorf("%d durations", n)
	}
}

// TestWhatIsKept: for how long, and what for.
func TestWhatIsKept(t *testing.T) {
	const other, elsewhere = "registry.example/other", "a.example:5000/team/app"
	for _, test := range []struct {
		scope, duration string
		runs            int // for the image twice, and one of the other two each
	}{
		{"Image", "1m", 3}, {"Registry", "1m", 2}, {"Global", "1m", 1}, {"Image", "0s", 4}, {"Global", "0s", 4},
	} {
		b := newBench(t, valid, answer+test.scope+" "+test.duration+" user pw")
		for _, i := range []string{image, image, other, elsewhere} {
			b.passwords(i, "")
		}
		if got := len(b.ran()); got != test.runs {
			t.Errorf("%s for %s: %d runs, want %d", test.scope, test.duration, got, test.runs)
		}
	}
}

func TestWhatIsKeptExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cache{m: map[cacheKey]cached{}, purged: time.Now()}
		has := func(image, account string) bool { _, ok := c.get(image, account); return ok }
		c.set(image, "", nil, time.Minute)
		c.set("registry.example", "a", nil, 2*time.Minute)
		time.Sleep(time.Minute)
		if !has(image, "") || has(image, "b") || !has("registry.example/x", "a") {
			t.Error("what is kept is not found, or is found by others")
		}
		time.Sleep(time.Second)
		if has(image, "") || !has(image, "a") {
			t.Error("a minute has gone")
		}
		time.Sleep(purgeEvery)
		if has("else", "") || len(c.m) != 0 {
			t.Errorf("%d expired entries are left", len(c.m))
		}
	})
}

func TestTheDefaultDuration(t *testing.T) {
	none := strings.Replace(answer, `"cacheDuration":"%s",`, "", 1)
	for duration, runs := range map[string]int{"10m": 1, "0s": 2} {
		b := newBench(t, strings.Replace(valid, "10m", duration, 1), none+"Image user pw")
		b.passwords(image, "")
		b.passwords(image, "")
		if got := len(b.ran()); got != runs {
			t.Errorf("default of %s: %d runs, want %d", duration, got, runs)
		}
	}
}

func TestTokens(t *testing.T) {
	b := newBench(t, withTokens, answer+"Image 1m user pw")
	b.accounts = accounts{token: "t-", annotations: map[string]string{"example/Role": "puller", "secret": "no"}}
	auths, err := b.Lookup(t.Context(), image, podOf("web"))
	owner := keyring.Owner{Kind: keyring.ServiceAccount, Namespace: "default", Name: "web", UID: "uid-web"}
	if err != nil || len(auths) != 1 || auths[0].Owner != owner {
		t.Errorf("got %+v, %v", auths, err)
	}
	request := `{"kind":"CredentialProviderRequest","apiVersion":"credentialprovider.kubelet.k8s.io/v1",` +
		`"image":"registry.example/app","serviceAccountToken":"t-web",` +
		`"serviceAccountAnnotations":{"example/Role":"puller"}}`
	if got := b.ran(); !slices.Equal(got, []string{request}) {
		t.Errorf("it was asked %q", got)
	}
	asked := b.accounts.requests[0]
	if asked.UID != "uid-web" || !slices.Equal(asked.Spec.Audiences, []string{"registry"}) ||
		asked.Spec.BoundObjectRef.Name != "p" || asked.Spec.BoundObjectRef.UID != "uid" {
		t.Errorf("the token was asked for as %+v", asked)
	}
	b.passwords(image, "web")
	b.passwords(image, "other")
	b.accounts.token = "new-"
	b.passwords(image, "web")
	b.accounts.annotations["example/hint"] = "x"
	b.passwords(image, "web")
	if got := len(b.ran()); got != 3 {
		t.Errorf("%d runs, want one each for the account, another one, and another annotation", got)
	}
}

func TestTokensThatAreTheCredential(t *testing.T) {
	echo := answer + `Image 1m user "$(sed 's/.*Token":"//;s/".*//' ` + "%s)\""
	ask := func(cacheType string) (*bench, []string) {
		b := newBench(t, strings.Replace(withTokens, "cacheType: ServiceAccount", "cacheType: "+cacheType, 1), "")
		write(t, b.plugins[0].program.path,
			"#!/bin/sh\ncat > "+b.runs+"\n"+strings.Replace(echo, "%s)", b.runs+")", 1), 0o755)
		b.accounts = accounts{token: "t-", annotations: map[string]string{"example/Role": ""}}
		return b, b.passwords(image, "web")
	}
	if b, got := ask("Token"); !slices.Equal(got, []string{"t-web"}) {
		t.Errorf("got %q: %s", got, b.log.String())
	}
	b, got := ask("ServiceAccount")
	if got != nil || !strings.Contains(b.log.String(), "returned the service account token as the password") ||
		strings.Contains(b.log.String(), "t-web") {
		t.Errorf("got %q, and the log has %s", got, b.log.String())
	}
}

// TestWhoIsNotAsked: pods without the service account, or the annotation, that the plugin requires.
func TestWhoIsNotAsked(t *testing.T) {
	b := newBench(t, withTokens, answer+"Image 1m user pw")
	if got := b.passwords(image, ""); got != nil || b.log.Len() > 0 {
		t.Errorf("no account: %q, %s", got, b.log.String())
	}
	if got := b.passwords(image, "web"); got != nil || b.log.Len() > 0 {
		t.Errorf("no annotation: %q, %s", got, b.log.String())
	}
	b.accounts.err = errors.New("forbidden")
	if got := b.passwords(image, "web"); got != nil ||
		!strings.Contains(b.log.String(), "failed to get service account: forbidden") {
		t.Errorf("no answer: %q, %s", got, b.log.String())
	}
	if got := b.ran(); len(got) != 0 {
		t.Errorf("it was asked %q", got)
	}
	optional := strings.Replace(strings.Replace(withTokens, "requireServiceAccount: true",
		"requireServiceAccount: false", 1), "    requiredServiceAccountAnnotationKeys: [example/Role]\n", "", 1)
	if got := newBench(t, optional, answer+"Image 1m user pw").passwords(image, ""); !slices.Equal(got, []string{"pw"}) {
		t.Errorf("an account that is not required: %q", got)
	}
}

func TestPluginsThatFail(t *testing.T) {
	for script, want := range map[string]string{
		"echo hunter2; echo no network >&2; exit 3": "exit status 3: no network",
		"echo hunter2": "error reading GVK from response",
		`echo '{"apiVersion":"v1","kind":"hunter2"}'`:                                "actual apiVersion:v1",
		answer + "Pod 1m user hunter2":                                               "valid cacheKeyType: Pod",
		strings.Replace(answer, "auth", "hunter2", 1) + "Image 1m user hunter2":      "error decoding credential provider",
		strings.Replace(answer, "Response", "Request", 1) + "Image 1m user hunter2":  "error decoding credential provider",
		"head -c 1100000 /dev/zero":                                                  "it wrote more than 1048576 bytes",
		strings.Replace(answer, "k8s.io/v1", "k8s.io/v1beta1", 1) + "Image 1m a a\n": "did not match expected apiVersion",
	} {
		b := newBench(t, valid, script)
		if got := b.passwords(image, ""); got != nil || !strings.Contains(b.log.String(), want) ||
			strings.Contains(b.log.String(), "hunter2") {
			t.Errorf("%s\ngave %q, and the log has %s, want %q", script, got, b.log.String(), want)
		}
	}
	b := newBench(t, valid, "exit 1")
	b.passwords(image, "")
	if n := testutil.ToFloat64(b.plugins[0].program.metrics.errors.WithLabelValues("cred")); n != 1 {
		t.Errorf("%v errors are counted", n)
	}
}

// TestAPluginEndsWithItsPull: it and what it started, though another who asks the same waits for it.
func TestAPluginEndsWithItsPull(t *testing.T) {
	b := newBench(t, valid, `sleep 1000 & echo $! > "$PIDS"; wait`)
	pids := filepath.Join(t.TempDir(), "pids")
	b.plugins[0].program.env = append(b.plugins[0].program.env, "PIDS="+pids)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := b.Lookup(ctx, image, podOf(""))
		ended <- err
	}()
	var child int
	proctest.Await(t, time.Minute, "the plugin's child", func() bool {
		data, _ := os.ReadFile(pids)
		child, _ = strconv.Atoi(strings.TrimSpace(string(data)))
		return child != 0
	})
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	proctest.Await(t, time.Minute, "the end of the plugin's child", func() bool {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", child))
		return err != nil || strings.Contains(string(data), ") Z ")
	})
}

// TestFewProcessesRunAtOneTime: a pod may name thousands of images, each of which has a plugin asked.
func TestFewProcessesRunAtOneTime(t *testing.T) {
	b := newBench(t, valid, fmt.Sprintf(answer, "Image", "0s", "u", "p"))
	var release func()
	for i := range maxRunning {
		var err error
		if release, err = b.running.Take(t.Context(), fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := b.Lookup(ctx, image, podOf("")); !errors.Is(err, context.DeadlineExceeded) || len(b.ran()) != 0 {
		t.Errorf("while as many run as may: %v, and another one ran: %q", err, b.ran())
	}
	release()
	if _, err := b.Lookup(t.Context(), image, podOf("")); err != nil || len(b.ran()) != 1 {
		t.Errorf("%v, and %q ran", err, b.ran())
	}
}

func TestFlights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := flights{m: map[string]*flight{}}
		var runs atomic.Int32
		run := func(ctx context.Context) (*response, error) {
			runs.Add(1)
			select {
			case <-time.After(time.Minute):
				return &response{}, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		results := make(chan error, 3)
		ask := func(ctx context.Context, key string) {
			_, err := f.do(ctx, key, run)
			results <- err
		}
		first, cancel := context.WithCancel(t.Context())
		go ask(first, "a")
		synctest.Wait()
		go ask(t.Context(), "a")
		impatient, end := context.WithTimeout(t.Context(), time.Second)
		defer end()
		go ask(impatient, "a")
		if err := <-results; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("who does not wait: %v", err)
		}
		if got := runs.Load(); got != 1 {
			t.Errorf("%d runs for three who ask", got)
		}
		cancel()
		if err := <-results; !errors.Is(err, context.Canceled) {
			t.Errorf("the first one: %v", err)
		}
		if err := <-results; err != nil {
			t.Errorf("who waited: %v", err)
		}
		if got := runs.Load(); got != 2 || len(f.m) != 0 {
			t.Errorf("%d runs, and %d are left", got, len(f.m))
		}
	})
}
