package main

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// answers serves what a Prometheus answers to every query of a range: two series, one with a hole.
func answers(t *testing.T, asked *[]string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseForm(); err != nil {
			t.Error(err)
		}
		*asked = append(*asked, r.Form.Get("query"))
		end, err := strconv.ParseFloat(r.Form.Get("end"), 64)
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"status":"success","data":{"resultType":"matrix","result":[
			{"metric":{"service":"podsync<1>","version":"v0.1.0"},"values":[[%f,"1.5"],[%f,"2.5"]]},
			{"metric":{"service":"pleg"},"values":[[%f,"NaN"],[%f,"+Inf"]]}]}}`, end-60, end, end-60, end)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// exampleBoard writes a dashboard with a panel of each kind.
func exampleBoard(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "dashboard.json")
	text := `{"title":"node","panels":[
		{"type":"row","title":"A row","gridPos":{"w":24,"h":1}},
		{"type":"stat","title":"A figure","gridPos":{"y":1,"w":6,"h":4},"targets":[{"expr":"up"}]},
		{"type":"stat","title":"A name","gridPos":{"x":6,"y":1,"w":6,"h":4},"options":{"textMode":"name"},
			"targets":[{"expr":"up","legendFormat":"v {{ service }}"}]},
		{"type":"timeseries","title":"Curves","gridPos":{"y":5,"w":12,"h":8},"fieldConfig":{"defaults":{"unit":"bytes"}},
			"targets":[{"expr":"rate(x{cluster=~\"$cluster\", instance=~\"$instance\"}[$__rate_interval])","legendFormat":"{{service}}"}]}]}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestDraw(t *testing.T) {
	b, err := read(exampleBoard(t))
	if err != nil {
		t.Fatal(err)
	}
	var asked []string
	from, err := newSource(answers(t, &asked), 4*time.Minute, 30*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	svg, err := draw(t.Context(), b, from)
	if err != nil {
		t.Fatal(err)
	}
	if want := `rate(x{cluster=~".*", instance=~".*"}[30s])`; len(asked) != 3 || asked[2] != want {
		t.Errorf("asked %q, the last should be %s", asked, want)
	}
	texts := wellFormed(t, string(svg))
	for _, want := range []string{"A row", "A figure", "2.5", "v podsync<1>", "Curves", "podsync<1>", "pleg"} {
		if !strings.Contains(texts, want+"\n") {
			t.Errorf("the picture has no text %q: %s", want, texts)
		}
	}
}

// wellFormed returns the texts of an SVG, one a line.
func wellFormed(t *testing.T, svg string) string {
	t.Helper()
	var texts strings.Builder
	for decoder := xml.NewDecoder(strings.NewReader(svg)); ; {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return texts.String()
		}
		if err != nil {
			t.Fatal(err)
		}
		if data, ok := token.(xml.CharData); ok {
			fmt.Fprintln(&texts, string(data))
		}
	}
}

func TestBadInput(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.json")
	if err := os.WriteFile(empty, []byte(`{}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		file string
		last time.Duration
		want string
	}{
		{empty + "5", time.Hour, "no such file"},
		{empty, time.Hour, "has no panels"},
		{exampleBoard(t), time.Second, "-last=1s: give at least 2m0s"},
	} {
		err := runSite("127.0.0.1:0", "http://127.0.0.1:1", c.file, c.last, time.Minute)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s, %s: %v, want %q", c.file, c.last, err, c.want)
		}
	}
	from, err := newSource("http://127.0.0.1:1", time.Hour, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	b := board{Panels: []panel{{Type: "stat", Title: "T", Targets: []target{{Expr: "x"}}}}}
	if _, err := draw(t.Context(), b, from); err == nil || !strings.Contains(err.Error(), `panel "T": query "x"`) {
		t.Errorf("without a Prometheus: %v", err)
	}
}
