package command

import (
	"bytes"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	supervisorv1 "github.com/microlet/microlet/proto/microlet/supervisor/v1"
)

func TestStatusOutput(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	s := newStatusOf(&supervisorv1.GetStatusResponse{
		Version: "v1", Placement: "processes", Pid: 7, Started: timestamppb.New(now),
		Processes: []*supervisorv1.Process{
			{
				Service:                  "bus",
				State:                    supervisorv1.State_STATE_READY,
				Pid:                      8,
				Started:                  timestamppb.New(now.Add(-90 * time.Second)),
				Restarts:                 2,
				LastExit:                 "signal: killed",
				PssBytes:                 3 << 20,
				HeartbeatAgeMilliseconds: 1500,
				Status:                   "listening",
			},
			{Service: "pleg", State: supervisorv1.State_STATE_BACKOFF, HeartbeatAgeMilliseconds: -1},
			{
				Service:                  "podsync",
				State:                    supervisorv1.State_STATE_STUCK,
				HeartbeatAgeMilliseconds: -1,
				Status:                   "waits for pid 9",
				Stuck: []*supervisorv1.StuckProcess{{
					Pid:      9,
					Since:    timestamppb.New(now),
					WaitsFor: "thread 10 (state D) in rpc_wait",
				}},
			},
		},
	}, now)
	var table bytes.Buffer
	if err := writeTable(&table, s); err != nil {
		t.Fatal(err)
	}
	//nolint:lll // it is what an operator sees
	want := `SERVICE  STATE    PID  UPTIME  RESTARTS  MEMORY   HEARTBEAT  LAST EXIT       STATUS
bus      ready    8    1m30s   2         3.0 MiB  1.5s ago   signal: killed  listening
pleg     backoff  -    -       0         -        -          -               
podsync  stuck    -    -       0         -        -          -               waits for pid 9; pid 9 was killed and does not end: thread 10 (state D) in rpc_wait
`
	if table.String() != want {
		t.Errorf("table is\n%s\nwant\n%s", &table, want)
	}
	var out bytes.Buffer
	if err := encode(&out, s); err != nil {
		t.Fatal(err)
	}
	var back Status
	if err := json.Unmarshal(out.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if p := back.Processes[0]; p.MemoryBytes != 3<<20 || p.HeartbeatAgeSeconds == nil ||
		*p.HeartbeatAgeSeconds != 1.5 || p.UptimeSeconds != 90 {
		t.Errorf("JSON is %s", &out)
	}
	if p := back.Processes[1]; p.HeartbeatAgeSeconds != nil || p.Started != nil {
		t.Errorf("JSON of a process that never lived is %s", &out)
	}
	if p := back.Processes[2]; p.State != "stuck" || len(p.Stuck) != 1 || p.Stuck[0].PID != 9 ||
		!p.Stuck[0].Since.Equal(now) || p.Stuck[0].WaitsFor == "" {
		t.Errorf("JSON of a stuck process is %s", &out)
	}
}

func TestStatusOfCertificates(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	s := newStatusOf(&supervisorv1.GetStatusResponse{Certificates: []*supervisorv1.Certificate{
		{Name: "client", Path: "/pki/client.pem", NotAfter: timestamppb.New(now.Add(100 * 24 * time.Hour))},
		{Name: "serving", Path: "/pki/old.pem", NotAfter: timestamppb.New(now.Add(-5 * time.Minute))},
		{Name: "serving", Path: "/pki/server.pem", Error: "there is none yet"},
	}}, now)
	var table, all, out bytes.Buffer
	if err := writeCertificates(&table, s.Certificates, now); err != nil {
		t.Fatal(err)
	}
	want := `
CERTIFICATE  ENDS                  LEFT               FILE
client       2026-04-11T12:00:00Z  100d               /pki/client.pem
serving      2026-01-01T11:55:00Z  ended 5m ago       /pki/old.pem
serving      -                     there is none yet  /pki/server.pem
`
	if table.String() != want {
		t.Errorf("table is\n%s\nwant\n%s", &table, want)
	}
	if err := writeTable(&all, s); err != nil || !strings.Contains(all.String(), "/pki/client.pem") {
		t.Errorf("the status is\n%s, %v", &all, err)
	}
	if err := encode(&out, s); err != nil {
		t.Fatal(err)
	}
	var back Status
	if err := json.Unmarshal(out.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if c := back.Certificates; len(c) != 3 || !c[0].NotAfter.Equal(now.Add(100*24*time.Hour)) || c[2].NotAfter != nil ||
		c[2].Error != "there is none yet" {
		t.Errorf("JSON is %s", &out)
	}
}

// TestStatusOfAServiceThatLies: a heartbeat says what its service likes. It neither drives the terminal nor keeps the
// status from being shown.
func TestStatusOfAServiceThatLies(t *testing.T) {
	s := newStatusOf(&supervisorv1.GetStatusResponse{Processes: []*supervisorv1.Process{{
		Service: "prober", State: supervisorv1.State_STATE_EXTERNAL, Pid: 7, Version: "v1\x1b]52;c;eA==\a\u009b2J",
		Started: &timestamppb.Timestamp{Seconds: 1 << 60},
	}}}, time.Now())
	var table, all bytes.Buffer
	if err := writeWide(&table, s); err != nil || strings.ContainsAny(table.String(), "\x1b\a\u009b") {
		t.Errorf("%q, %v", &table, err)
	}
	if err := encode(&all, s); err != nil || !json.Valid(all.Bytes()) {
		t.Errorf("%s, %v", &all, err)
	}
}

func execute(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := New()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestStatusSaysWhyThereIsNone(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "sock", "up"), 0o750); err != nil {
		t.Fatal(err)
	}
	if _, err := execute(t, "status", "--runtime-dir="+dir); err == nil ||
		!strings.Contains(err.Error(), "microlet up is not running") {
		t.Errorf("without a socket: %v", err)
	}
	path := filepath.Join(dir, "sock", "up", "grpc.sock")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	if err := dead.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := execute(t, "status", "--runtime-dir="+dir); err == nil ||
		!strings.Contains(err.Error(), "microlet up is not running") {
		t.Errorf("with the socket of a dead one: %v", err)
	}
	if _, err := execute(t, "status", "-o", "xml"); err == nil || !strings.Contains(err.Error(), `output is "xml"`) {
		t.Errorf("-o xml: %v", err)
	}
}

func TestCommands(t *testing.T) {
	out, err := execute(t, "--help")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"up", "status", "version", "completion", "bus", "podsync", "pleg", "prober",
		"nodestatus", "imagegc", "stats", "evictor", "nodeapi"} {
		if !strings.Contains(out, "\n  "+name+" ") {
			t.Errorf("--help lacks %s:\n%s", name, out)
		}
		if _, err := execute(t, name, "--help"); err != nil {
			t.Errorf("%s --help: %v", name, err)
		}
	}
	if out, err := execute(t, "version"); err != nil || !strings.HasPrefix(out, "microlet v") {
		t.Errorf("version is %q, %v", out, err)
	}
	if _, err := execute(t, "up", "--no-such-flag"); err == nil || !strings.Contains(err.Error(), "no-such-flag") {
		t.Errorf("an unknown flag: %v", err)
	}
	if _, err := execute(t, "unknown"); err == nil {
		t.Error("an unknown service was accepted")
	}
}
