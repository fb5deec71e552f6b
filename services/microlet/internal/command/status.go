package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/util/duration"

	supervisorv1 "github.com/microlet/microlet/proto/microlet/supervisor/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/run"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/internal/unixgrpc"
	"github.com/microlet/microlet/services/microlet/internal/up"
)

// statusTimeout bounds the question: who asks is waiting.
const statusTimeout = 5 * time.Second

// outputWide is the table with what is wanted now and then.
const outputWide = "wide"

// notReady is the exit code of --exit-code, as systemctl status has it of a unit that does not run.
const notReady = 3

// statusOptions are the flags of status.
type statusOptions struct {
	service               service.Config
	output                string
	watch, exitCode, wait bool
	timeout               time.Duration
}

func newStatus() *cobra.Command {
	o := statusOptions{service: service.DefaultConfig(), output: outputTable, timeout: waitDefault}
	cmd := &cobra.Command{
		Use:   "status [SERVICE...]",
		Short: "Show the node's services: state, pid, uptime, restarts, memory, heartbeat",
		Long: "Show the node's services, or those named: state, pid, uptime, restarts, memory, heartbeat.\n" +
			"Only root may ask. It ends with 0 if \"microlet up\" answers, whatever the services do, and with 1 if\n" +
			"it does not.\n" +
			"Where units start the services, it shows them as external, by their heartbeats.\n" +
			"A service that is \"on demand\" starts with the first connection to one of its sockets.\n" +
			"With --exit-code it ends with 3 if a service is neither ready nor on demand; external ones are\n" +
			"ready while their heartbeats come. With --wait it does so only after --timeout.",
		Example: "  microlet status\n  microlet status podsync -o yaml\n  microlet status --wait --timeout=2m",
		Args:    anyServices,
	}
	addRuntimeDir(cmd, &o.service)
	cmd.Flags().StringVarP(&o.output, "output", "o", o.output,
		`"table", "wide" with versions and command lines, "json" or "yaml"`)
	cmd.Flags().BoolVarP(&o.watch, "watch", "w", o.watch, "show it again every 2 s, until it is interrupted")
	cmd.Flags().BoolVar(&o.exitCode, "exit-code", o.exitCode, "end with 3 if a service is not ready")
	cmd.Flags().BoolVar(&o.wait, "wait", o.wait,
		"wait until the services are ready, and end with 3 if they do not become so")
	cmd.Flags().DurationVar(&o.timeout, "timeout", o.timeout, "how long to wait")
	cmd.ValidArgsFunction = completeAllServices
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := o.check(); err != nil {
			return err
		}
		ask := func(ctx context.Context) (Status, error) {
			all, err := askStatus(ctx, &o.service)
			if err != nil {
				return all, err
			}
			return all.of(args)
		}
		if o.watch {
			return watch(cmd.Context(), cmd.OutOrStdout(), func(ctx context.Context, w io.Writer) error {
				all, err := ask(ctx)
				if err != nil {
					return err
				}
				return o.show(w, all)
			})
		}
		all, err := o.ask(run.Signals(cmd.Context()), ask)
		if err != nil {
			return err
		}
		err = o.show(cmd.OutOrStdout(), all)
		if missing := all.notReady(); (o.exitCode || o.wait) && err == nil && len(missing) > 0 {
			return service.ExitError{Code: notReady, Err: fmt.Errorf("not ready: %s", strings.Join(missing, ", "))}
		}
		return err
	}
	return cmd
}

func (o *statusOptions) check() error {
	switch {
	case o.watch && (o.exitCode || o.wait):
		return errors.New("--watch never ends by itself and has no exit code: leave out --exit-code and --wait, or --watch")
	case o.output == outputWide:
		return checkPositive("timeout", o.timeout)
	}
	return errors.Join(checkOutput(o.output, outputTable, outputWide), checkPositive("timeout", o.timeout))
}

func (o *statusOptions) show(w io.Writer, s Status) error {
	switch o.output {
	case outputTable:
		return writeTable(w, s)
	case outputWide:
		return writeWide(w, s)
	}
	return encodeAs(w, o.output, s)
}

// ask asks once or, with --wait, until all services are ready, or the time is over.
func (o *statusOptions) ask(ctx context.Context, ask func(context.Context) (Status, error)) (Status, error) {
	if !o.wait {
		return ask(ctx)
	}
	over := time.NewTimer(o.timeout)
	defer over.Stop()
	t := time.NewTicker(lookEvery)
	defer t.Stop()
	for {
		all, err := ask(ctx)
		if err == nil && len(all.notReady()) == 0 {
			return all, nil
		}
		select {
		case <-ctx.Done():
			return all, context.Cause(ctx)
		case <-over.C:
			return all, err
		case <-t.C:
		}
	}
}

// anyServices refuses what is no service.
func anyServices(_ *cobra.Command, args []string) error {
	for _, a := range args {
		name, _, _ := strings.Cut(a, ".")
		if _, err := findRole(name); err != nil {
			return err
		}
	}
	return nil
}

// completeAllServices completes any argument with the names of services.
func completeAllServices(cmd *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
	return completeServices(cmd, nil, word)
}

// of is the status of the services with these names, each with all of its replicas; all of it without names.
func (s Status) of(names []string) (Status, error) {
	if len(names) == 0 {
		return s, nil
	}
	all := s.Processes
	s.Processes, s.Certificates, s.Groups = nil, nil, nil
	for _, p := range all {
		service, _, _ := strings.Cut(p.Service, ".")
		if slices.Contains(names, p.Service) || slices.Contains(names, service) {
			s.Processes = append(s.Processes, p)
		}
	}
	if len(s.Processes) == 0 {
		return s, fmt.Errorf("%s does not run on this node: see microlet status", strings.Join(names, ", "))
	}
	return s, nil
}

// askStatus asks the supervisor or, on a node that has none, the bus for the heartbeats of the services.
func askStatus(ctx context.Context, cfg *service.Config) (Status, error) {
	status, err := askUp(ctx, cfg.Socket(role.Up))
	if !errors.Is(err, errNoSupervisor) {
		return status, err
	}
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	answer, without := up.ExternalStatus(ctx, *cfg)
	switch {
	case errors.Is(without, fs.ErrNotExist):
		return Status{}, err
	case without != nil:
		return Status{}, fmt.Errorf("no microlet up runs on this node, and the bus cannot be asked: %w", without)
	}
	return newStatusOf(answer, time.Now()), nil
}

// askUp asks the supervisor that serves the socket.
func askUp(ctx context.Context, socket string) (Status, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	client, closeUp, err := dialUp(socket)
	if err != nil {
		return Status{}, err
	}
	defer closeUp()
	answer, err := client.GetStatus(ctx, &supervisorv1.GetStatusRequest{})
	if err != nil {
		return Status{}, explain(err, socket)
	}
	return newStatusOf(answer, time.Now()), nil
}

// dialUp returns a client of the supervisor that serves the socket.
func dialUp(socket string) (client supervisorv1.SupervisorServiceClient, closeUp func(), err error) {
	if _, err := os.Stat(socket); err != nil {
		return nil, nil, explain(err, socket)
	}
	conn, err := unixgrpc.Dial(socket, unixgrpc.DialOptions{Server: role.Up})
	if err != nil {
		return nil, nil, err
	}
	return supervisorv1.NewSupervisorServiceClient(conn), func() { _ = conn.Close() }, nil
}

// errNoSupervisor says that nothing serves the supervisor's socket.
var errNoSupervisor = errors.New("microlet up is not running")

// withoutSupervisor adds to an error what to do where units or containers start the services.
func withoutSupervisor(err error, runtimeDir, advice string) error {
	if _, prepared := up.PreparedPeers(runtimeDir); prepared != nil || !errors.Is(err, errNoSupervisor) {
		return err
	}
	return errors.New("no microlet up runs on this node, since units or containers start the services: " + advice)
}

// explain says what an operator can do about a supervisor that does not answer.
func explain(err error, socket string) error {
	text := err.Error()
	switch {
	case errors.Is(err, fs.ErrNotExist), strings.Contains(text, syscall.ECONNREFUSED.Error()),
		strings.Contains(text, syscall.ENOENT.Error()):
		return fmt.Errorf("%w: nothing serves %s; start it, or name its --runtime-dir", errNoSupervisor, socket)
	case errors.Is(err, fs.ErrPermission), strings.Contains(text, syscall.EACCES.Error()),
		strings.Contains(text, "PermissionDenied"):
		return errors.New("only root may ask microlet up: use sudo")
	case status.Code(err) == codes.NotFound, status.Code(err) == codes.FailedPrecondition:
		return errors.New(status.Convert(err).Message())
	case status.Code(err) == codes.Unimplemented:
		return fmt.Errorf("microlet up on %s is of an older version, which cannot do this: restart it", socket)
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
	// Groups are the processes that hold several services; none if each has a process of its own.
	Groups []Group `json:"groups,omitempty"`
	// Certificates are those that the node works with; none if the agent does not report them.
	Certificates []Certificate `json:"certificates,omitempty"`
}

// Group is a process that holds several services. Each of them has the privileges of all. Warning says what is unsafe
// about that; it is empty if nothing is.
type Group struct {
	Name       string `json:"name"`
	Privileges string `json:"privileges"`
	Warning    string `json:"warning,omitempty"`
}

// Certificate is one that the node works with: "client" or "serving". NotAfter is null if Error says why its end is
// unknown.
type Certificate struct {
	Name     string     `json:"name"`
	Path     string     `json:"path"`
	NotAfter *time.Time `json:"notAfter"`
	Error    string     `json:"error,omitempty"`
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
	// Version is the one that the process reports with its heartbeat; empty if none was heard.
	Version string `json:"version"`
	// Arguments are the process's command line without the program; none of "up" and of external processes.
	Arguments []string `json:"arguments,omitempty"`
	// Group is the name of the process if it holds other services too: pid, restarts and last exit are those of all. The
	// memory is counted with the first.
	Group string `json:"group,omitempty"`
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
			State:       stateName(p.GetState()),
			PID:         p.GetPid(),
			Restarts:    p.GetRestarts(),
			LastExit:    p.GetLastExit(),
			MemoryBytes: p.GetPssBytes(),
			Status:      p.GetStatus(),
			Version:     harmless(p.GetVersion()), // the process's own word, as its start is
			Arguments:   p.GetArguments(),
			Group:       p.GetGroup(),
		}
		if p.GetStarted().IsValid() {
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
	for _, g := range a.GetGroups() {
		out.Groups = append(out.Groups, Group{Name: g.GetName(), Privileges: g.GetPrivileges(), Warning: g.GetWarning()})
	}
	for _, c := range a.GetCertificates() {
		row := Certificate{Name: c.GetName(), Path: c.GetPath(), Error: c.GetError()}
		if c.GetNotAfter() != nil {
			end := c.GetNotAfter().AsTime()
			row.NotAfter = &end
		}
		out.Certificates = append(out.Certificates, row)
	}
	return out
}

// stateOnDemand is the state of a service that nothing needs yet.
const stateOnDemand = "on demand"

// stateName is a state as operators see it.
func stateName(s supervisorv1.State) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(s.String(), "STATE_"), "_", " "))
}

// heartbeatLimit is the age from which on the heartbeat of an external process says that it is gone: three are missing.
const heartbeatLimit = 15 * time.Second

// notReady names the processes that do not do their work.
func (s *Status) notReady() []string {
	var names []string
	for _, p := range s.Processes {
		ready := p.State == "ready" || p.State == stateOnDemand
		if p.State == "external" {
			ready = p.HeartbeatAgeSeconds != nil && *p.HeartbeatAgeSeconds < heartbeatLimit.Seconds()
		}
		if !ready {
			names = append(names, p.Service)
		}
	}
	return names
}

// writeWide is the table with what each process is: its version and its command line.
func writeWide(w io.Writer, s Status) error {
	if err := writeTable(w, s); err != nil {
		return err
	}
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "\nSERVICE\tVERSION\tARGUMENTS")
	for _, p := range s.Processes {
		version := p.Version
		if version == "" {
			version = "-"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\n", p.Service, version, strings.Join(p.Arguments, " "))
	}
	return t.Flush()
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
	if err := errors.Join(t.Flush(), writeGroups(w, s.Groups)); err != nil || len(s.Certificates) == 0 {
		return err
	}
	return writeCertificates(w, s.Certificates, time.Now())
}

// writeGroups is the table of the processes that hold several services.
func writeGroups(w io.Writer, all []Group) error {
	if len(all) == 0 {
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "\nSHARED PROCESS\tPRIVILEGES OF EACH SERVICE")
	for _, g := range all {
		privileges := g.Privileges
		if g.Warning != "" {
			privileges += "; warning: " + g.Warning
		}
		fmt.Fprintf(t, "%s\t%s\n", g.Name, privileges)
	}
	return t.Flush()
}

// writeCertificates is the table of when the node's certificates end.
func writeCertificates(w io.Writer, all []Certificate, now time.Time) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "\nCERTIFICATE\tENDS\tLEFT\tFILE")
	for _, c := range all {
		end, left := "-", c.Error
		if c.NotAfter != nil {
			end, left = c.NotAfter.UTC().Format(time.RFC3339), duration.HumanDuration(c.NotAfter.Sub(now))
			if !now.Before(*c.NotAfter) {
				left = "ended " + duration.HumanDuration(now.Sub(*c.NotAfter)) + " ago"
			}
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", c.Name, end, left, c.Path)
	}
	return t.Flush()
}
