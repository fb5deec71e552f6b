package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	supervisorv1 "github.com/microlet/microlet/proto/microlet/supervisor/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/internal/unixgrpc"
)

// statusTimeout bounds the question: who asks is waiting.
const statusTimeout = 5 * time.Second

func newStatus() *cobra.Command {
	cfg := service.DefaultConfig()
	output := "table"
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the node's services: state, pid, uptime, restarts, memory, heartbeat",
		Args:  service.NoArguments,
	}
	cmd.Flags().StringVar(&cfg.RuntimeDir, "runtime-dir", cfg.RuntimeDir,
		"runtime folder of the node agent that is asked")
	cmd.Flags().StringVarP(&output, "output", "o", output, `"table" or "json"`)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var show func(io.Writer, Status) error
		switch output {
		case "table":
			show = writeTable
		case "json":
			show = writeJSON
		default:
			return fmt.Errorf(`output is %q: use "table" or "json"`, output)
		}
		status, err := askStatus(cmd.Context(), cfg.Socket(role.Up))
		if err != nil {
			return err
		}
		return show(cmd.OutOrStdout(), status)
	}
	return cmd
}

// askStatus asks the supervisor that serves the socket.
func askStatus(ctx context.Context, socket string) (Status, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	if _, err := os.Stat(socket); err != nil {
		return Status{}, explain(err, socket)
	}
	conn, err := unixgrpc.Dial(socket, unixgrpc.DialOptions{Server: role.Up})
	if err != nil {
		return Status{}, err
	}
	defer conn.Close()
	answer, err := supervisorv1.NewSupervisorServiceClient(conn).GetStatus(ctx, &supervisorv1.GetStatusRequest{})
	if err != nil {
		return Status{}, explain(err, socket)
	}
	return newStatusOf(answer, time.Now()), nil
}

// explain says what an operator can do about a supervisor that does not answer.
func explain(err error, socket string) error {
	text := err.Error()
	switch {
	case errors.Is(err, fs.ErrNotExist), strings.Contains(text, syscall.ECONNREFUSED.Error()),
		strings.Contains(text, syscall.ENOENT.Error()):
		return fmt.Errorf("microlet up is not running: nobody serves %s; start it, or name its --runtime-dir", socket)
	case errors.Is(err, fs.ErrPermission), strings.Contains(text, syscall.EACCES.Error()),
		strings.Contains(text, "PermissionDenied"):
		return fmt.Errorf("microlet up may only be asked by root: %w", err)
	case strings.Contains(text, "DeadlineExceeded"):
		return fmt.Errorf("microlet up does not answer on %s within %v: it hangs or is stopped", socket, statusTimeout)
	}
	return fmt.Errorf("ask microlet up on %s: %w", socket, err)
}

// Status is what "microlet status -o json" prints.
type Status struct {
	Version   string    `json:"version"`
	Placement string    `json:"placement"`
	PID       int32     `json:"pid"`
	Started   time.Time `json:"started"`
	Processes []Process `json:"processes"`
}

// Process is one service. Memory is its proportional set size; 0 when unknown, or when it is counted with the
// process that holds it. HeartbeatAgeSeconds is null when none was heard.
type Process struct {
	Service             string     `json:"service"`
	State               string     `json:"state"`
	PID                 int32      `json:"pid"`
	Started             *time.Time `json:"started"`
	UptimeSeconds       float64    `json:"uptimeSeconds"`
	Restarts            uint32     `json:"restarts"`
	LastExit            string     `json:"lastExit"`
	MemoryBytes         uint64     `json:"memoryBytes"`
	HeartbeatAgeSeconds *float64   `json:"heartbeatAgeSeconds"`
	Status              string     `json:"status"`
	// Stuck are those before it that were killed and do not end.
	Stuck []StuckProcess `json:"stuck,omitempty"`
}

// StuckProcess was killed and does not end. WaitsFor says where its threads are in the kernel.
type StuckProcess struct {
	PID      int32     `json:"pid"`
	Since    time.Time `json:"since"`
	WaitsFor string    `json:"waitsFor"`
}

func newStatusOf(a *supervisorv1.GetStatusResponse, now time.Time) Status {
	out := Status{
		Version:   a.GetVersion(),
		Placement: a.GetPlacement(),
		PID:       a.GetPid(),
		Started:   a.GetStarted().AsTime(),
	}
	for _, p := range a.GetProcesses() {
		row := Process{
			Service:     p.GetService(),
			State:       strings.ToLower(strings.TrimPrefix(p.GetState().String(), "STATE_")),
			PID:         p.GetPid(),
			Restarts:    p.GetRestarts(),
			LastExit:    p.GetLastExit(),
			MemoryBytes: p.GetPssBytes(),
			Status:      p.GetStatus(),
		}
		if p.GetStarted() != nil {
			started := p.GetStarted().AsTime()
			row.Started = &started
			if row.PID != 0 {
				row.UptimeSeconds = max(0, now.Sub(started).Seconds())
			}
		}
		if ms := p.GetHeartbeatAgeMilliseconds(); ms >= 0 {
			age := float64(ms) / 1000
			row.HeartbeatAgeSeconds = &age
		}
		for _, s := range p.GetStuck() {
			row.Stuck = append(row.Stuck,
				StuckProcess{PID: s.GetPid(), Since: s.GetSince().AsTime(), WaitsFor: s.GetWaitsFor()})
		}
		out.Processes = append(out.Processes, row)
	}
	return out
}

func writeJSON(w io.Writer, s Status) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(s)
}

func writeTable(w io.Writer, s Status) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "SERVICE\tSTATE\tPID\tUPTIME\tRESTARTS\tMEMORY\tHEARTBEAT\tLAST EXIT\tSTATUS")
	for _, p := range s.Processes {
		pid, uptime, memory, heartbeat, exit := "-", "-", "-", "-", "-"
		if p.PID != 0 {
			pid = fmt.Sprint(p.PID)
			uptime = (time.Duration(p.UptimeSeconds) * time.Second).String()
		}
		if p.MemoryBytes != 0 {
			memory = fmt.Sprintf("%.1f MiB", float64(p.MemoryBytes)/(1<<20))
		}
		if p.HeartbeatAgeSeconds != nil {
			heartbeat = fmt.Sprintf("%.1fs ago", *p.HeartbeatAgeSeconds)
		}
		if p.LastExit != "" {
			exit = p.LastExit
		}
		status := p.Status
		for _, s := range p.Stuck {
			status = strings.TrimPrefix(status+"; ", "; ") +
				fmt.Sprintf("pid %d was killed and does not end: %s", s.PID, s.WaitsFor)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\n", p.Service, p.State, pid, uptime, p.Restarts, memory,
			heartbeat, exit, status)
	}
	return t.Flush()
}
