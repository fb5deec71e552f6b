// Package prometheus runs the real Prometheus for a test, and asks it what it has.
package prometheus

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/microlet/microlet/compose/e2e/scene"
)

// Object is a part of the configuration.
type Object = map[string]any

// Server is a Prometheus that runs.
type Server struct {
	address string
	ended   chan error
}

// Start starts the program, and ends it with the test. It scrapes and evaluates as often as period says.
func Start(t *testing.T, program string, period time.Duration, ruleFile string, jobs []Object) *Server {
	t.Helper()
	dir, address := t.TempDir(), freeAddress(t)
	every := period.String()
	text, err := yaml.Marshal(Object{
		"global":         Object{"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
		"rule_files":     []string{ruleFile},
		"scrape_configs": append([]Object{{"job_name": "itself", "static_configs": Targets(nil, address)}}, jobs...),
	})
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "prometheus.yaml")
	if err := os.WriteFile(config, text, 0o600); err != nil {
		t.Fatal(err)
	}
	logs, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "--config.file="+config,
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address)
	cmd.Stdout, cmd.Stderr = logs, logs
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &Server{address: address, ended: make(chan error, 1)}
	go func() { p.ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-p.ended
		if text, err := os.ReadFile(logs.Name()); t.Failed() {
			t.Logf("Prometheus has logged (%v):\n%s", err, text)
		}
		logs.Close()
	})
	p.Await(t, scene.Patience, "its readiness", p.ready)
	return p
}

// Targets are those of a job, with their labels, as its configuration or a file has them.
func Targets(labels map[string]string, addresses ...string) []Object {
	return []Object{{"targets": addresses, "labels": labels}}
}

// freeAddress is a free address of loopback, for a program that cannot choose its own.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func (p *Server) ready() error {
	answer, err := http.Get("http://" + p.address + "/-/ready")
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("it says %s", answer.Status)
	}
	return nil
}

// Await is scene.Await for what Prometheus is asked, which must live.
func (p *Server) Await(t *testing.T, patience time.Duration, what string, check func() error) {
	t.Helper()
	scene.Await(t, patience, "Prometheus: "+what, func() error {
		select {
		case err := <-p.ended:
			p.ended <- err
			t.Fatalf("Prometheus has ended: %v", err)
		default:
		}
		return check()
	})
}

// AwaitValue waits until a query has this value alone.
func (p *Server) AwaitValue(t *testing.T, query, want string) {
	t.Helper()
	p.Await(t, scene.Patience, query, func() error {
		got, err := p.Ask(query)
		if err == nil && got != want {
			err = fmt.Errorf("it says %s, want %s", got, want)
		}
		return err
	})
}

// Ask evaluates a query that has one value.
func (p *Server) Ask(query string) (string, error) {
	values, err := p.Query(query)
	if err != nil {
		return "", err
	}
	if len(values) != 1 {
		return "", fmt.Errorf("%d series", len(values))
	}
	return values[0], nil
}

// Query evaluates a query, and returns the value of each series.
func (p *Server) Query(query string) ([]string, error) {
	var data struct {
		Result []struct {
			Value [2]any `json:"value"` // time, and the value as a string
		} `json:"result"`
	}
	if err := p.get("/api/v1/query?query="+url.QueryEscape(query), &data); err != nil {
		return nil, err
	}
	values := make([]string, len(data.Result))
	for i, r := range data.Result {
		values[i] = fmt.Sprint(r.Value[1])
	}
	return values, nil
}

// Rule is an alert as Prometheus has it.
type Rule struct {
	Name, Health, State, LastError string
	LastEvaluation                 time.Time
	Alerts                         []Alert
}

// Alert is one that is pending or fires.
type Alert struct {
	State               string
	Labels, Annotations map[string]string
}

// Rules returns the rules of all groups.
func (p *Server) Rules() ([]Rule, error) {
	var data struct{ Groups []struct{ Rules []Rule } }
	if err := p.get("/api/v1/rules", &data); err != nil {
		return nil, err
	}
	var all []Rule
	for _, group := range data.Groups {
		all = append(all, group.Rules...)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("it has no rules: %+v", data)
	}
	return all, nil
}

// get reads the data of an answer of the API.
func (p *Server) get(path string, data any) error {
	answer, err := http.Get("http://" + p.address + path)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	result := struct {
		Error string `json:"error"`
		Data  any    `json:"data"`
	}{Data: data}
	if err := json.NewDecoder(answer.Body).Decode(&result); err != nil {
		return fmt.Errorf("%s: %w", answer.Status, err)
	}
	if result.Error != "" {
		return fmt.Errorf("%s: %s", answer.Status, result.Error)
	}
	return nil
}
