package stats

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	statsv1 "github.com/microlet/microlet/proto/microlet/stats/v1"
)

// service is stats. Its functions are what it answers.
type service struct {
	summary func(context.Context, *statsv1.SummaryRequest) (*statsv1.SummaryResponse, error)
	// recv is called for each part of a page.
	recv func(ctx context.Context, page statsv1.MetricsPage, part int) (*statsv1.PageResponse, error)
}

func (s service) Summary(ctx context.Context, in *statsv1.SummaryRequest,
	_ ...grpc.CallOption) (*statsv1.SummaryResponse, error) {
	return s.summary(ctx, in)
}

func (s service) Page(ctx context.Context, in *statsv1.PageRequest,
	_ ...grpc.CallOption) (grpc.ServerStreamingClient[statsv1.PageResponse], error) {
	return &stream{ctx: ctx, page: in.GetPage(), recv: s.recv}, nil
}

// stream is one page on its way.
type stream struct {
	grpc.ClientStream
	ctx  context.Context
	page statsv1.MetricsPage
	next int
	recv func(context.Context, statsv1.MetricsPage, int) (*statsv1.PageResponse, error)
}

func (s *stream) Recv() (*statsv1.PageResponse, error) {
	s.next++
	return s.recv(s.ctx, s.page, s.next-1)
}

// parts is a page of these texts, and then the error.
func parts(end error, texts ...string) service {
	return service{recv: func(_ context.Context, _ statsv1.MetricsPage, n int) (*statsv1.PageResponse, error) {
		if n >= len(texts) {
			return nil, end
		}
		return &statsv1.PageResponse{Text: []byte(texts[n])}, nil
	}}
}

// hung never answers.
func hung(ctx context.Context) error {
	<-ctx.Done()
	return status.FromContextError(ctx.Err()).Err()
}

func handlers(s service) *Handlers {
	return New(s, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
}

// call answers one request. A handler that aborts has no answer.
func call(t *testing.T, handle http.HandlerFunc, r *http.Request) (answer *httptest.ResponseRecorder, aborted bool) {
	t.Helper()
	answer = httptest.NewRecorder()
	defer func() {
		if p := recover(); p != nil {
			if err, is := p.(error); !is || !errors.Is(err, http.ErrAbortHandler) {
				panic(p)
			}
			aborted = true
		}
	}()
	handle(answer, r)
	return answer, false
}

func get(ctx context.Context, target string) *http.Request {
	return httptest.NewRequestWithContext(ctx, http.MethodGet, target, nil)
}

func TestSummary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		taken := time.Now()
		time.Sleep(2900 * time.Millisecond)
		var only bool
		h := handlers(service{summary: func(ctx context.Context, in *statsv1.SummaryRequest) (*statsv1.SummaryResponse,
			error) {
			if _, sent := ctx.Deadline(); sent {
				t.Error("stats gets a deadline, and may be the first to notice it")
			}
			only = in.GetOnlyCpuAndMemory()
			return &statsv1.SummaryResponse{Json: []byte(`{"node":{}}`), Taken: timestamppb.New(taken)}, nil
		}})
		form := func(target, body string) *http.Request {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, target, strings.NewReader(body))
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			return r
		}
		for _, test := range []struct {
			name string
			r    *http.Request
			only bool
		}{
			{"plain", get(t.Context(), "/stats/summary"), false},
			{"query", get(t.Context(), "/stats/summary?only_cpu_and_memory=true"), true},
			{"false", get(t.Context(), "/stats/summary?only_cpu_and_memory=false"), false},
			{"1 is not true", get(t.Context(), "/stats/summary?only_cpu_and_memory=1"), false},
			{"twice", get(t.Context(), "/stats/summary?only_cpu_and_memory=true&only_cpu_and_memory=true"), false},
			{"form", form("/stats/summary", "only_cpu_and_memory=true"), true},
			{"query of a POST", form("/stats/summary?only_cpu_and_memory=true", ""), true},
			{"form and query", form("/stats/summary?only_cpu_and_memory=true", "only_cpu_and_memory=true"), false},
		} {
			answer, _ := call(t, h.Summary, test.r)
			if answer.Code != 200 || answer.Body.String() != `{"node":{}}` || only != test.only {
				t.Errorf("%s: %d %q, only CPU and memory: %v", test.name, answer.Code, answer.Body, only)
			}
			for name, want := range map[string]string{
				"Content-Type": "application/json", "Content-Length": "11", "Age": "2", "Warning": "", "Content-Encoding": "",
			} {
				if got := answer.Header().Get(name); got != want {
					t.Errorf("%s: %s is %q, want %q", test.name, name, got, want)
				}
			}
		}
		answer, _ := call(t, h.Summary, get(t.Context(), "/stats/summary?only_cpu_and_memory=%zz"))
		if answer.Code != 400 {
			t.Errorf("a broken query: %d", answer.Code)
		}
	})
}

func TestPagesPassThrough(t *testing.T) {
	text := strings.Repeat("container_cpu_usage_seconds_total{container=\"c\"} 1 1000\n", 1000)
	h := handlers(service{recv: func(_ context.Context, page statsv1.MetricsPage, n int) (*statsv1.PageResponse, error) {
		switch n {
		case 0:
			return &statsv1.PageResponse{Text: []byte(page.String()), Taken: timestamppb.New(time.Now().Add(-time.Hour))}, nil
		case 1:
			return &statsv1.PageResponse{Text: []byte(text)}, nil
		}
		return nil, io.EOF
	}})
	for _, test := range []struct {
		handle http.HandlerFunc
		first  string
	}{{h.Resource, "METRICS_PAGE_RESOURCE"}, {h.Cadvisor, "METRICS_PAGE_CADVISOR"}} {
		for _, accepted := range []string{"", "gzip", "zstd, gzip;q=0.8"} {
			r := get(t.Context(), "/")
			r.Header.Set("Accept-Encoding", accepted)
			answer, aborted := call(t, test.handle, r)
			body, encoding := io.Reader(answer.Body), ""
			if accepted != "" {
				encoding = "gzip"
				var err error
				if body, err = gzip.NewReader(answer.Body); err != nil {
					t.Fatal(err)
				}
			}
			got, err := io.ReadAll(body)
			if err != nil || aborted || answer.Code != 200 || string(got) != test.first+text {
				t.Errorf("%s, %q: %d, %d bytes of %d, %v", test.first, accepted, answer.Code, len(got), len(text), err)
			}
			for name, want := range map[string]string{
				"Content-Type": "text/plain; version=0.0.4; charset=utf-8", "Content-Encoding": encoding, "Age": "3600",
			} {
				if got := answer.Header().Get(name); got != want {
					t.Errorf("%s, %q: %s is %q, want %q", test.first, accepted, name, got, want)
				}
			}
		}
	}
}

// TestAPageIsNotKept: each part is with the caller before the next one is read.
func TestAPageIsNotKept(t *testing.T) {
	const count = 100
	part := bytes.Repeat([]byte("x"), 1<<10)
	answer := httptest.NewRecorder()
	h := handlers(service{recv: func(_ context.Context, _ statsv1.MetricsPage, n int) (*statsv1.PageResponse, error) {
		if got := answer.Body.Len(); got != n*len(part) {
			t.Errorf("at part %d the caller has %d bytes", n, got)
		}
		if n == count {
			return nil, io.EOF
		}
		return &statsv1.PageResponse{Text: part}, nil
	}})
	h.Cadvisor(answer, get(t.Context(), "/metrics/cadvisor"))
	if answer.Body.Len() != count*len(part) {
		t.Errorf("the caller has %d bytes", answer.Body.Len())
	}
}

func TestEmptyPage(t *testing.T) {
	answer, aborted := call(t, handlers(parts(io.EOF)).Resource, get(t.Context(), "/"))
	if answer.Code != 200 || answer.Body.Len() != 0 || aborted || answer.Header().Get("Age") != "" {
		t.Errorf("%d %q %v, aborted: %v", answer.Code, answer.Body, answer.Header(), aborted)
	}
}

func TestWhatStatsRefuses(t *testing.T) {
	for _, test := range []struct {
		err  error
		code int
		text string
	}{
		{status.Error(codes.Unavailable, "no socket"), 503, "stats has no figures: no socket\n"},
		{status.Error(codes.ResourceExhausted, "too many"), 503, "stats has no figures: too many\n"},
		{status.Error(codes.PermissionDenied, "not for you"), 500, "Internal Error: not for you\n"},
		{status.Error(codes.Internal, "broken"), 500, "Internal Error: broken\n"},
	} {
		s := parts(test.err)
		s.summary = func(context.Context, *statsv1.SummaryRequest) (*statsv1.SummaryResponse, error) { return nil, test.err }
		h := handlers(s)
		for name, handle := range map[string]http.HandlerFunc{
			summary: h.Summary, resource: h.Resource, cadvisor: h.Cadvisor,
		} {
			r := get(t.Context(), "/")
			r.Header.Set("Accept-Encoding", "gzip")
			answer, aborted := call(t, handle, r)
			if answer.Code != test.code || answer.Body.String() != test.text || aborted {
				t.Errorf("%s, %v: %d %q", name, test.err, answer.Code, answer.Body)
			}
			if again := answer.Header().Get("Retry-After"); (again == "1") != (test.code == 503) {
				t.Errorf("%s, %v: try again after %q", name, test.err, again)
			}
			if got := testutil.ToFloat64(h.failed.WithLabelValues(name)); got != 1 {
				t.Errorf("%s, %v: counted %v times", name, test.err, got)
			}
		}
	}
}

func TestNoCallerWaitsForAStatsThatHangs(t *testing.T) {
	s := service{
		summary: func(ctx context.Context, _ *statsv1.SummaryRequest) (*statsv1.SummaryResponse, error) {
			return nil, hung(ctx)
		},
		recv: func(ctx context.Context, _ statsv1.MetricsPage, _ int) (*statsv1.PageResponse, error) {
			return nil, hung(ctx)
		},
	}
	synctest.Test(t, func(t *testing.T) {
		h := handlers(s)
		for name, handle := range map[string]http.HandlerFunc{
			summary: h.Summary, resource: h.Resource, cadvisor: h.Cadvisor,
		} {
			began := time.Now()
			answer, _ := call(t, handle, get(t.Context(), "/"))
			if took := time.Since(began); took != patience {
				t.Errorf("%s: the answer took %s", name, took)
			}
			if answer.Code != 503 || !strings.Contains(answer.Body.String(), "no answer within 8s") {
				t.Errorf("%s: %d %q", name, answer.Code, answer.Body)
			}
		}
	})
}

// The wait for a place and the wait for stats are one: a caller has its answer before it gives up.
func TestAWaitForAPlaceIsAPartOfThePatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := handlers(service{summary: func(ctx context.Context, _ *statsv1.SummaryRequest) (*statsv1.SummaryResponse,
			error) {
			return nil, hung(ctx)
		}})
		var all sync.WaitGroup
		for i := range 2 * perAddress {
			all.Go(func() {
				time.Sleep(time.Duration(i) * time.Second)
				began := time.Now()
				answer, _ := call(t, h.Summary, get(t.Context(), "/"))
				if took := time.Since(began); took != patience {
					t.Errorf("answer %d (%d) took %s, want %s", i, answer.Code, took, patience)
				}
			})
		}
		all.Wait()
	})
}

// TestTheCallersOwnEnd is no failure of stats.
func TestTheCallersOwnEnd(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	h := handlers(service{recv: func(inner context.Context, _ statsv1.MetricsPage, _ int) (*statsv1.PageResponse, error) {
		cancel()
		return nil, hung(inner)
	}})
	call(t, h.Resource, get(ctx, "/"))
	if got := testutil.ToFloat64(h.failed.WithLabelValues(resource)); got != 0 {
		t.Errorf("counted %v times", got)
	}
}

func TestAPageThatStopsIsBrokenOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := handlers(service{recv: func(ctx context.Context, _ statsv1.MetricsPage, n int) (*statsv1.PageResponse, error) {
			if n > 2 {
				return nil, hung(ctx)
			}
			time.Sleep(patience - time.Second) // each part has the time that the first one has
			return &statsv1.PageResponse{Text: []byte("part\n")}, nil
		}})
		began := time.Now()
		answer, aborted := call(t, h.Cadvisor, get(t.Context(), "/"))
		if took := time.Since(began); !aborted || answer.Body.String() != "part\npart\npart\n" ||
			took != 4*patience-3*time.Second {
			t.Errorf("after %s, aborted: %v, %q", took, aborted, answer.Body)
		}
		if got := testutil.ToFloat64(h.failed.WithLabelValues(cadvisor)); got != 1 {
			t.Errorf("counted %v times", got)
		}
	})
}

// TestHalfAPageIsNoPage: on a real connection, a client notices that it does not have all.
func TestHalfAPageIsNoPage(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(
		handlers(parts(status.Error(codes.Unavailable, "killed"), "half\n")).Resource))
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.Start()
	defer server.Close()
	for _, encoding := range []string{"identity", "gzip"} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Accept-Encoding", encoding)
		answer, err := server.Client().Do(r)
		if err == nil {
			_, err = io.Copy(io.Discard, answer.Body)
			_ = answer.Body.Close()
		}
		if err == nil {
			t.Errorf("%s: the client takes half a page for a whole one", encoding)
		}
	}
}

func TestASlowCallerIsNotCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := httptest.NewRecorder()
		handlers(parts(io.EOF, "a", "b", "c")).Resource(slowly{answer}, get(t.Context(), "/"))
		if answer.Body.String() != "abc" {
			t.Errorf("the caller has %q", answer.Body)
		}
	})
}

// slowly takes its time with each write.
type slowly struct{ *httptest.ResponseRecorder }

func (s slowly) Write(data []byte) (int, error) {
	time.Sleep(2 * patience)
	return s.ResponseRecorder.Write(data)
}

// TestAReaderWhoTakesNothingIsCutOff: its place is free again, and others are served meanwhile.
func TestAReaderWhoTakesNothingIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// What a slow caller's connection does to a write: it waits for the deadline.
		var asked, refused atomic.Int64
		h := handlers(service{recv: func(ctx context.Context, _ statsv1.MetricsPage, _ int) (*statsv1.PageResponse, error) {
			asked.Add(1)
			return &statsv1.PageResponse{Text: []byte("a part of a page without end")}, ctx.Err()
		}})
		from := func(address string) *http.Request {
			r := get(t.Context(), "/")
			r.RemoteAddr = address + ":1"
			return r
		}
		var stuck sync.WaitGroup
		for range 2 * readers { // of one address
			stuck.Go(func() {
				w := &stuckWriter{ResponseRecorder: httptest.NewRecorder()}
				h.Cadvisor(w, from("192.0.2.1"))
				if w.Code == http.StatusTooManyRequests {
					refused.Add(1)
				}
			})
			synctest.Wait()
		}
		if got := asked.Load(); got != perAddress {
			t.Errorf("stats was asked for %d parts by one address", got)
		}
		other := make(chan int64)
		began := time.Now()
		go func() {
			w := &stuckWriter{ResponseRecorder: httptest.NewRecorder()}
			h.Cadvisor(w, from("192.0.2.2"))
			other <- int64(time.Since(began))
		}()
		synctest.Wait()
		if got := asked.Load(); got != perAddress+1 {
			t.Errorf("another address waits: %d parts", got)
		}
		if took := time.Duration(<-other); took != pageWrite {
			t.Errorf("a reader who takes nothing keeps his place for %s", took)
		}
		stuck.Wait()
		if got := refused.Load(); got != 2*readers-perAddress {
			t.Errorf("%d readers were refused", got)
		}
	})
}

// stuckWriter is a connection with another end that reads nothing.
type stuckWriter struct {
	*httptest.ResponseRecorder
	deadline time.Time
}

func (w *stuckWriter) SetWriteDeadline(t time.Time) error {
	w.deadline = t
	return nil
}

func (w *stuckWriter) Write([]byte) (int, error) {
	time.Sleep(time.Until(w.deadline))
	return 0, os.ErrDeadlineExceeded
}

func TestOldFiguresSayWhy(t *testing.T) {
	s := service{
		summary: func(context.Context, *statsv1.SummaryRequest) (*statsv1.SummaryResponse, error) {
			return &statsv1.SummaryResponse{Problem: "runtime \"hangs\"\r\nSet-Cookie: x"}, nil
		},
		recv: func(_ context.Context, _ statsv1.MetricsPage, n int) (*statsv1.PageResponse, error) {
			if n > 0 {
				return nil, io.EOF
			}
			return &statsv1.PageResponse{
				Problem: "slow",
				Taken:   timestamppb.New(time.Now().Add(time.Hour)), // by a clock that was set back since
			}, nil
		},
	}
	h := handlers(s)
	answer, _ := call(t, h.Summary, get(t.Context(), "/"))
	if got := answer.Header().Get("Warning"); got != `110 - "runtime \"hangs\"\r\nSet-Cookie: x"` {
		t.Errorf("the warning is %s", got)
	}
	answer, _ = call(t, h.Resource, get(t.Context(), "/"))
	if w, age := answer.Header().Get("Warning"), answer.Header().Get("Age"); w != `110 - "slow"` || age != "0" {
		t.Errorf("the warning is %s, the age %s", w, age)
	}
	for name, want := range map[string]float64{summary: 1, resource: 1, cadvisor: 0} {
		if got := testutil.ToFloat64(h.stale.WithLabelValues(name)); got != want {
			t.Errorf("%s: %v answers are counted as stale, want %v", name, got, want)
		}
	}
}

func TestTakesGzip(t *testing.T) {
	for value, want := range map[string]bool{
		"": false, "identity": false, "gzip": true, "GZIP": true, " gzip ": true, "br, gzip": true,
		"gzip;q=0": false, "gzip;q=0.0": false, "gzip;q=0.001": true, "gzip; Q = 1": true, "gzip;q=": false,
		"gzip;q=x": false, "gzip;q=NaN": false, "gzip;level=1": true, "xgzip": false, "gzip, gzip;q=0": true,
	} {
		if got := takesGzip([]string{"deflate", value}); got != want {
			t.Errorf("%q: %v, want %v", value, got, want)
		}
	}
}

func FuzzTakesGzip(f *testing.F) {
	f.Add("br;q=1.0, gzip;q=0.8, *;q=0.1")
	f.Fuzz(func(t *testing.T, value string) {
		if takesGzip([]string{value}) && !strings.Contains(strings.ToLower(value), "gzip") {
			t.Errorf("%q does not name gzip", value)
		}
	})
}
