package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/services/microlet/internal/debugbundle"
)

const (
	// journalLines is how many of the newest lines of the journal an archive has. The supervisor's memory ends with the
	// supervisor; the journal has what came before.
	journalLines = 4000
	// journalKept is how much of them it has: no more than an archive takes of one source.
	journalKept = 2<<20 - 64<<10
	// secretMargin is more than a secret is long: of one that the beginning cuts off, nothing is kept.
	secretMargin = 64 << 10
	// journalDelay is how long a journalctl that was killed may take to end.
	journalDelay = time.Second
	// maxKernelLog is more than the kernel's log is on any machine that was not given a larger one.
	maxKernelLog = 16 << 20
)

// journalUnits are those of the agent: "microlet up", the target with a unit for each service, and the kubelet's, which
// "microlet up" has on a node of kubeadm, and which ran before on a node that was moved.
var journalUnits = []string{"microlet.service", "microlet-*.service", "kubelet.service"}

// systemLogs are what the machine keeps of the agent and of the kernel. A machine without systemd has no journal.
func systemLogs() []debugbundle.Source {
	return []debugbundle.Source{
		{Name: "machine/journal.log", Collect: readJournal},
		{Name: "machine/dmesg.txt", Collect: func(context.Context) ([]byte, error) { return kernelLog() }},
	}
}

// readJournal asks journalctl for the newest lines of the agent's units.
func readJournal(ctx context.Context) ([]byte, error) {
	args := []string{"--no-pager", "--quiet", "--output=short-iso-precise", fmt.Sprintf("--lines=%d", journalLines)}
	for _, unit := range journalUnits {
		args = append(args, "--unit="+unit)
	}
	var out, said bytes.Buffer
	cmd := exec.CommandContext(ctx, "journalctl", args...) //nolint:gosec // args are those above
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, &said, journalDelay
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("journalctl: %w", errors.Join(err, saidError(said.String())))
	}
	if out.Len() == 0 {
		return nil, fmt.Errorf("the journal has no line of %s", strings.Join(journalUnits, ", "))
	}
	recent := debugbundle.Scrub(newest(out.Bytes(), journalKept+secretMargin))
	return newest(recent, journalKept), nil
}

// saidError is what a program wrote to its standard error, if anything.
func saidError(text string) error {
	if text = strings.TrimSpace(text); text == "" {
		return nil
	}
	return errors.New(text)
}

// kernelLog is the kernel's ring buffer, as dmesg --raw prints it.
func kernelLog() ([]byte, error) {
	size, err := unix.Klogctl(unix.SYSLOG_ACTION_SIZE_BUFFER, nil)
	if err != nil {
		return nil, fmt.Errorf("size of the kernel's log: %w", err)
	}
	buffer := make([]byte, min(size, maxKernelLog))
	n, err := unix.Klogctl(unix.SYSLOG_ACTION_READ_ALL, buffer)
	if err != nil {
		return nil, fmt.Errorf("read the kernel's log: %w", err)
	}
	return newest(buffer[:n], kernelLogKept), nil
}

// kernelLogKept is how much of the kernel's log an archive has.
const kernelLogKept = 1 << 20

// newest is the end of a log, from a line's beginning on: what happened last is what a report is about.
func newest(log []byte, kept int) []byte {
	if len(log) <= kept {
		return log
	}
	log = log[len(log)-kept:]
	_, whole, _ := bytes.Cut(log, []byte("\n"))
	return whole
}
