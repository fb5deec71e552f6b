package debugbundle

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/microlet/microlet/services/microlet/internal/debugbundle/bundletest"
)

func TestWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		give := func(text string) func(context.Context) ([]byte, error) {
			return func(context.Context) ([]byte, error) { return []byte(text), nil }
		}
		var out bytes.Buffer
		missing, err := Write(t.Context(), &out, []Source{
			{"version.json", give("{}")},
			{"logs/bus.log", give("password=hunter2")},
			{"refused", func(context.Context) ([]byte, error) { return nil, errors.New("Bearer 123456789 is refused") }},
			{"hangs", func(ctx context.Context) ([]byte, error) { <-ctx.Done(); return nil, ctx.Err() }},
			{"long", give(strings.Repeat("x", maxFile+1))},
		}, time.Now())
		if err != nil || !slices.Equal(missing, []string{"refused", "hangs"}) {
			t.Fatalf("%v, missing %q", err, missing)
		}
		files := bundletest.Read(t, &out)
		for name, want := range map[string]string{
			"version.json": "{}",
			"logs/bus.log": "password=<removed>",
			"missing.txt":  "refused: Bearer <removed> is refused\nhangs: context deadline exceeded\n",
			"long":         strings.Repeat("x", maxFile) + "\n(the rest is left out)\n",
		} {
			if files[name] != want {
				t.Errorf("%s is %.100q, want %.100q", name, files[name], want)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := Write(ctx, io.Discard, []Source{{"x", give("")}}, time.Now()); !errors.Is(err, context.Canceled) {
			t.Errorf("when it is interrupted: %v", err)
		}
	})
}

func TestScrub(t *testing.T) {
	const secret = "h0nter2h0nter2h0nter2"
	seed := "SU" + strings.Repeat("A7", 28)
	for _, text := range []string{
		"-----BEGIN EC PRIVATE KEY-----\n" + secret + "\n-----END EC PRIVATE KEY-----",
		"-----BEGIN PRIVATE KEY-----\n" + secret,
		"token eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlcm5ldGVz." + secret + " is expired",
		`{"Authorization":["Bearer ` + secret + `"]}`, "Authorization: Basic " + secret, `authorization=` + secret,
		`msg="header \"Authorization\": \"` + secret + `\""`,
		"bearer " + secret, "password: " + secret, `"password":"` + secret + `"`, "--registry-password=" + secret,
		"AWS_SECRET_KEY=" + secret, "client-key-data: " + secret, "apiKey: " + secret, "authToken=" + secret,
		"https://user:" + secret + "@registry.example/v2", "abcdef.0123456789abcdef", "seed " + seed,
	} {
		got := string(Scrub([]byte(text)))
		if strings.Contains(got, secret) || strings.Contains(got, seed) || strings.Contains(got, "0123456789abcdef") ||
			!strings.Contains(got, removed) {
			t.Errorf("%q becomes %q", text, got)
		}
	}
	for _, text := range []string{
		"the pod's Secret default/registry is missing", `time=2026-01-01T00:00:00Z level=INFO msg="token is renewed" pid=7`,
		"unix:///run/containerd/containerd.sock", "http://10.0.0.1:8080/healthz", "registryPullQPS: 5", "secret: registry",
		"goroutine profile: total 34\n1 @ 0x47a0ee 0x4125f3\n", "v1.37.1-0.20260101000000-abcdefabcdef",
	} {
		if got := string(Scrub([]byte(text))); got != text {
			t.Errorf("%q becomes %q", text, got)
		}
	}
}
