package auth

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	nodestatusv1 "github.com/microlet/microlet/proto/microlet/nodestatus/v1"
	"github.com/microlet/microlet/services/nodeapi/internal/httpport"
	"github.com/microlet/microlet/services/nodeapi/internal/testpki"
)

// reviewer is nodestatus and the apiserver behind it: it knows the token "good" of user jane, who may
// get metrics.
type reviewer struct {
	mu             sync.Mutex
	tokens, access int
	fail           error
	failAccess     error
}

func (r *reviewer) ReviewToken(_ context.Context, in *nodestatusv1.ReviewTokenRequest,
	_ ...grpc.CallOption) (*nodestatusv1.ReviewTokenResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tokens++
	if r.fail != nil {
		return nil, r.fail
	}
	var review authenticationv1.TokenReview
	if err := review.Unmarshal(in.GetReview()); err != nil {
		return nil, err
	}
	if review.Spec.Token == "good" {
		review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{
			Username: "jane",
			UID:      "7",
			Groups:   []string{"dev"},
			Extra:    map[string]authenticationv1.ExtraValue{"k": {"v"}},
		}}
	}
	data, err := review.Marshal()
	return &nodestatusv1.ReviewTokenResponse{Review: data}, err
}

func (r *reviewer) ReviewAccess(_ context.Context, in *nodestatusv1.ReviewAccessRequest,
	_ ...grpc.CallOption) (*nodestatusv1.ReviewAccessResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.access++
	if err := cmp.Or(r.fail, r.failAccess); err != nil {
		return nil, err
	}
	var review authorizationv1.SubjectAccessReview
	if err := review.Unmarshal(in.GetReview()); err != nil {
		return nil, err
	}
	a := review.Spec.ResourceAttributes
	review.Status.Allowed = review.Spec.User == "jane" && review.Spec.Extra["k"][0] == "v" &&
		a.Verb == "get" && a.Resource == "nodes" && a.Name == "n" && a.Version == "v1" && a.Subresource == "metrics"
	data, err := review.Marshal()
	return &nodestatusv1.ReviewAccessResponse{Review: data}, err
}

func (r *reviewer) asked() (tokens, access int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tokens, r.access
}

func (r *reviewer) set(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fail = err
}

func options(r nodestatusv1.ReviewServiceClient) Options {
	d := func(d time.Duration) metav1.Duration { return metav1.Duration{Duration: d} }
	return Options{
		NodeName: "n", Reviews: r, Log: slog.New(slog.DiscardHandler),
		Authentication: kubeletv1beta1.KubeletAuthentication{
			Webhook:   kubeletv1beta1.KubeletWebhookAuthentication{Enabled: new(true), CacheTTL: d(2 * time.Minute)},
			Anonymous: kubeletv1beta1.KubeletAnonymousAuthentication{Enabled: new(false)},
		},
		Authorization: kubeletv1beta1.KubeletAuthorization{
			Mode: kubeletv1beta1.KubeletAuthorizationModeWebhook,
			Webhook: kubeletv1beta1.KubeletWebhookAuthorization{
				CacheAuthorizedTTL:   d(5 * time.Minute),
				CacheUnauthorizedTTL: d(30 * time.Second),
			},
		},
	}
}

func mustNew(t *testing.T, o Options) *Auth {
	t.Helper()
	a, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func request(method, token string) *http.Request {
	r := httptest.NewRequest(method, "/metrics", nil)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	return r
}

func code(r *Refusal) int {
	if r == nil {
		return http.StatusOK
	}
	return r.Code
}

func TestCheck(t *testing.T) {
	a := mustNew(t, options(&reviewer{}))
	for _, test := range []struct {
		name, method, token string
		subresources        []string
		want                int
	}{
		{"a stranger", http.MethodGet, "", []string{"metrics"}, 401},
		{"a wrong token", http.MethodGet, "bad", []string{"metrics"}, 401},
		{"allowed", http.MethodGet, "good", []string{"metrics"}, 200},
		{"one of two is enough", http.MethodGet, "good", []string{"pods", "metrics"}, 200},
		{"another verb", http.MethodPost, "good", []string{"metrics"}, 403},
		{"no verb", http.MethodOptions, "good", []string{"metrics"}, 403},
		{"another subresource", http.MethodGet, "good", []string{"proxy"}, 403},
		{"nothing to ask for", http.MethodGet, "good", nil, 403},
	} {
		r := request(test.method, test.token)
		if got := code(a.Check(r, test.subresources)); got != test.want {
			t.Errorf("%s: %d, want %d", test.name, got, test.want)
		}
		if test.token == "good" && r.Header.Get("Authorization") != "" {
			t.Errorf("%s: the token is still in the request", test.name)
		}
	}
	refusal := a.Check(request(http.MethodGet, "good"), []string{"pods", "proxy"})
	if want := "Forbidden (user=jane, verb=get, resource=nodes, subresource(s)=[pods proxy])\n"; refusal.Text != want {
		t.Errorf("the refusal says %q, want %q", refusal.Text, want)
	}
}

func TestNoCallerPassesWhileReviewsFail(t *testing.T) {
	r := &reviewer{fail: errors.New("nodestatus is away")}
	a := mustNew(t, options(r))
	if got := code(a.Check(request(http.MethodGet, "good"), []string{"metrics"})); got != 401 {
		t.Errorf("without an answer about the token: %d, want 401", got)
	}
	r.set(nil)
	if got := code(a.Check(request(http.MethodGet, "good"), []string{"metrics"})); got != 200 {
		t.Fatalf("with an answer: %d, want 200: a failure must not be kept", got)
	}
	r.set(errors.New("nodestatus is away"))
	if got := code(a.Check(request(http.MethodGet, "good"), []string{"metrics"})); got != 200 {
		t.Errorf("who passed a moment ago: %d, want 200", got)
	}
	if got := code(a.Check(request(http.MethodGet, "good"), []string{"log"})); got != 500 {
		t.Errorf("without an answer about the right: %d, want 500", got)
	}
}

func TestAnswersAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &reviewer{}
		a := newAccess(r, 5*time.Minute, 30*time.Second)
		guard := &Auth{nodeName: "n", may: a, who: mustNew(t, options(r)).who, log: slog.New(slog.DiscardHandler)}
		check := func(sub string, want, asked int) {
			t.Helper()
			if got := code(guard.Check(request(http.MethodGet, "good"), []string{sub})); got != want {
				t.Errorf("%s: %d, want %d", sub, got, want)
			}
			if _, n := r.asked(); n != asked {
				t.Errorf("%s: %d reviews so far, want %d", sub, n, asked)
			}
		}
		check("metrics", 200, 1)
		check("proxy", 403, 2)
		time.Sleep(29 * time.Second)
		check("metrics", 200, 2)
		check("proxy", 403, 2)
		time.Sleep(2 * time.Second)
		check("proxy", 403, 3)
		check("metrics", 200, 3)
		time.Sleep(5 * time.Minute)
		check("metrics", 200, 4)
	})
}

func TestManyWhoAskTheSameShareOneReview(t *testing.T) {
	r := &reviewer{}
	a := mustNew(t, options(r))
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if got := code(a.Check(request(http.MethodGet, "good"), []string{"metrics"})); got != 200 {
				t.Errorf("%d", got)
			}
		})
	}
	wg.Wait()
	if tokens, access := r.asked(); tokens > 10 || access > 10 {
		t.Errorf("%d token reviews and %d access reviews for 50 equal requests at once", tokens, access)
	}
}

func TestModes(t *testing.T) {
	o := options(&reviewer{})
	o.Authentication.Webhook.Enabled = new(false)
	if _, err := New(o); err == nil || !strings.Contains(err.Error(), "no method is on") {
		t.Errorf("no user could sign in, and that is no error: %v", err)
	}
	o.Authentication.Anonymous.Enabled = new(true)
	if got := code(mustNew(t, o).Check(request(http.MethodGet, ""), []string{"metrics"})); got != 403 {
		t.Errorf("anonymous without a right: %d, want 403", got)
	}
	o.Authorization.Mode = kubeletv1beta1.KubeletAuthorizationModeAlwaysAllow
	if got := code(mustNew(t, o).Check(request(http.MethodGet, ""), []string{"metrics"})); got != 200 {
		t.Errorf("anonymous where all is allowed: %d, want 200", got)
	}
	o.Authentication.Webhook.Enabled = new(true)
	if got := code(mustNew(t, o).Check(request(http.MethodGet, "bad"), []string{"metrics"})); got != 401 {
		t.Errorf("a wrong token passes for anonymous: %d, want 401", got)
	}
	o.Authorization.Mode = "Maybe"
	if _, err := New(o); err == nil {
		t.Error("an unknown mode is no error")
	}
}

func TestClientCertificates(t *testing.T) {
	ours, other := testpki.New(t, "ours"), testpki.New(t, "other")
	file := filepath.Join(t.TempDir(), "ca.crt")
	testpki.Replace(t, map[string][]byte{file: ours.PEM})
	ca, err := dynamiccertificates.NewDynamicCAContentFromFile("client-ca", file)
	if err != nil {
		t.Fatal(err)
	}
	o := options(&reviewer{})
	o.ClientCA, o.Authorization.Mode = ca, kubeletv1beta1.KubeletAuthorizationModeAlwaysAllow
	a := mustNew(t, o)
	client := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	for _, test := range []struct {
		name string
		by   *testpki.Authority
		leaf testpki.Leaf
		want int
	}{
		{"good", ours, testpki.Client("jane"), 200},
		{"expired", ours, testpki.Leaf{Usage: client, From: -time.Hour, To: -time.Minute}, 401},
		{"not valid yet", ours, testpki.Leaf{Usage: client, From: time.Minute, To: time.Hour}, 401},
		{"of another authority", other, testpki.Client("jane"), 401},
		{"for servers", ours, testpki.Server("jane"), 401},
		// as X.509 has it
		{"for no use in particular", ours, testpki.Leaf{Name: "jane", From: -time.Minute, To: time.Minute}, 200},
	} {
		r := request(http.MethodGet, "")
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{test.by.Pair(test.leaf).Leaf}}
		if got := code(a.Check(r, []string{"proxy"})); got != test.want {
			t.Errorf("a certificate that is %s: %d, want %d", test.name, got, test.want)
		}
	}
}

// TestCallersDoNotFillTheLog has a caller be refused as often as he can, for reasons that are worth a line.
func TestCallersDoNotFillTheLog(t *testing.T) {
	long := strings.Repeat("x", 16<<10)
	for name, setUp := range map[string]func(*reviewer){
		"an unknown caller":         func(r *reviewer) { r.set(errors.New(long)) },
		"a caller without a review": func(r *reviewer) { r.failAccess = errors.New(long) },
	} {
		synctest.Test(t, func(t *testing.T) {
			var log bytes.Buffer
			reviews := &reviewer{}
			setUp(reviews)
			o := options(reviews)
			o.Log = slog.New(slog.NewTextHandler(&log, nil))
			a := mustNew(t, o)
			const minutes, most = 10, 10 * 6 * 4096
			for range minutes * 60 {
				r := request("GET", "good")
				r.URL.Path = "/" + long
				if got := code(a.Check(r, []string{"metrics"})); got == 200 {
					t.Fatalf("%s passes", name)
				}
				time.Sleep(time.Second)
			}
			if n := log.Len(); n == 0 || n > most {
				t.Errorf("%s: %d bytes are logged in %d minutes", name, n, minutes)
			}
		})
	}
}

// counted is a CA that counts how often a certificate is compared with it.
type counted struct {
	dynamiccertificates.CAContentProvider
	asked atomic.Int32
}

func (c *counted) VerifyOptions() (x509.VerifyOptions, bool) {
	c.asked.Add(1)
	return c.CAContentProvider.VerifyOptions()
}

// TestCertificatesAreLookedAtRarely for a connection, however many requests come on it. One of another authority is a
// wrong credential for each of them, but a token counts.
func TestCertificatesAreLookedAtRarely(t *testing.T) {
	ours, other := testpki.New(t, "ours"), testpki.New(t, "other")
	file := filepath.Join(t.TempDir(), "ca.crt")
	testpki.Replace(t, map[string][]byte{file: ours.PEM})
	content, err := dynamiccertificates.NewDynamicCAContentFromFile("client-ca", file)
	if err != nil {
		t.Fatal(err)
	}
	ca := &counted{CAContentProvider: content}
	o := options(&reviewer{})
	o.ClientCA, o.Authentication.Anonymous.Enabled = ca, new(true)
	a := mustNew(t, o)
	ask := serveTLS(t, a, ours)
	for name, test := range map[string]struct {
		by   *testpki.Authority
		want []int
	}{
		// The certificate comes before the token.
		"ours":      {ours, []int{403, 403, 403, 403, 403}},
		"another's": {other, []int{401, 200, 401, 401, 401}},
	} {
		ca.asked.Store(0)
		var got []int
		for _, token := range []string{"", "good", "bad", "", ""} {
			got = append(got, ask(name, test.by.Pair(testpki.Client("joe")), token))
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
		if n := ca.asked.Load(); n != 2 { // for the connection, and for the first request
			t.Errorf("%s: the certificate is looked at %d times", name, n)
		}
	}
}

// serveTLS serves on a port whose requests a checks. What it returns sends a request with a certificate and a token, on
// the connection of this name, and returns the status code.
func serveTLS(t *testing.T, a *Auth, authority *testpki.Authority) func(name string, pair tls.Certificate,
	token string) int {
	t.Helper()
	at := make(chan net.Addr, 1)
	port := &httpport.Server{
		Address: "127.0.0.1:0", Certified: a.Certified, Log: slog.New(slog.DiscardHandler),
		Limits: httpport.Limits{Connections: 9, PerAddress: 9}, Metrics: httpport.NewMetrics(prometheus.NewRegistry()),
		Listening: func(is net.Addr) { at <- is },
		TLS: func() (*tls.Config, error) {
			return &tls.Config{
				Certificates: []tls.Certificate{authority.Pair(testpki.Server("n"))}, ClientAuth: tls.RequestClientCert,
			}, nil
		},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(code(a.Check(r, []string{"metrics"})))
		}),
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- port.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	url := "https://" + (<-at).String()
	connections := map[string]*http.Transport{}
	return func(name string, pair tls.Certificate, token string) int {
		t.Helper()
		transport := connections[name]
		if transport == nil {
			transport = &http.Transport{TLSClientConfig: &tls.Config{
				InsecureSkipVerify: true, Certificates: []tls.Certificate{pair},
			}}
			t.Cleanup(transport.CloseIdleConnections)
			connections[name] = transport
		}
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		answer, err := transport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		return answer.StatusCode
	}
}
