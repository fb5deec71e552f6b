package command

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	supervisorv1 "github.com/microlet/microlet/proto/microlet/supervisor/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/run"
	"github.com/microlet/microlet/services/internal/service"
)

func newLogs() *cobra.Command {
	cfg := service.DefaultConfig()
	since := time.Duration(0)
	request := &supervisorv1.ReadLogsRequest{Tail: -1}
	cmd := &cobra.Command{
		Use:   "logs [SERVICE]",
		Short: "Show the newest lines of the node agent's log, of all services or of one",
		Long: "Show the newest lines of the node agent's log, of all services or of one, such as pleg, or prober.1 for\n" +
			"one replica. \"microlet up\" keeps some hundred lines of each process since its start; its standard error\n" +
			"has the whole log, which is the journal's for a unit: journalctl -u microlet. For the logs of containers,\n" +
			"use kubectl logs or crictl logs. Only root may ask.",
		Example: "  microlet logs podsync --pod=web\n  microlet logs -f",
		Args:    atMostOneService,
	}
	addRuntimeDir(cmd, &cfg)
	cmd.Flags().BoolVarP(&request.Follow, "follow", "f", request.Follow, "show further lines as they come")
	cmd.Flags().Int32Var(&request.Tail, "tail", request.Tail, "how many of the newest lines to begin with; -1 is all")
	cmd.Flags().StringVar(&request.Word, "pod", request.Word,
		"only lines that name this pod, by its name, namespace/name or UID")
	cmd.Flags().DurationVar(&since, "since", since, "only lines that are at most this old, such as 10m; 0 is all")
	cmd.ValidArgsFunction = completeServices
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if since < 0 {
			return fmt.Errorf("since is %v: give how old lines may be, such as 10m", since)
		}
		if request.GetTail() < -1 {
			return fmt.Errorf("tail is %d: give a number of lines, or -1 for all", request.GetTail())
		}
		if len(args) > 0 {
			request.Process = args[0]
		}
		show := &newer{to: cmd.OutOrStdout()}
		if since > 0 {
			show.than = time.Now().Add(-since)
		}
		lines, err := readLogs(run.Signals(cmd.Context()), show, cfg.Socket(role.Up), request)
		if err == nil && lines == 0 && since > 0 {
			fmt.Fprintf(cmd.ErrOrStderr(), "no line is newer than %v; leave out --since for older ones\n", since)
		} else if err == nil && lines == 0 && request.GetWord() != "" && request.GetTail() != 0 {
			fmt.Fprintf(cmd.ErrOrStderr(), "none of the newest lines names pod %s; see \"microlet pods\" for its name, and the "+
				"whole log on the standard error of microlet up\n", request.GetWord())
		}
		return withoutSupervisor(err, cfg.RuntimeDir, "read their logs there, such as with journalctl -u 'microlet-*'")
	}
	return cmd
}

// atMostOneService refuses what is no service, and more than one.
func atMostOneService(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if len(args) > 1 {
		return fmt.Errorf("%q is one too many: name one service, or none for all", args[1])
	}
	name, _, _ := strings.Cut(args[0], ".")
	_, err := findRole(name)
	return err
}

// readLogs copies the lines that the supervisor sends, and counts them.
func readLogs(ctx context.Context, to *newer, socket string, request *supervisorv1.ReadLogsRequest) (int, error) {
	lines := 0
	up, closeUp, err := dialUp(socket)
	if err != nil {
		return lines, err
	}
	defer closeUp()
	if !request.GetFollow() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, statusTimeout)
		defer cancel()
	}
	stream, err := up.ReadLogs(ctx, request)
	if err != nil {
		return lines, explain(err, socket)
	}
	for {
		page, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF) && request.GetFollow():
			return lines, errors.New("microlet up has ended: what it logged last is in the journal")
		case errors.Is(err, io.EOF), errors.Is(ctx.Err(), context.Canceled):
			return lines, nil
		case err != nil:
			return lines, explain(err, socket)
		}
		shown, err := to.write(page)
		if lines += shown; err != nil {
			return lines, err
		}
	}
}

// newer shows the lines of logs that are newer than a time, or all if it is zero.
type newer struct {
	to   io.Writer
	than time.Time
	// keeps says that the last line with a time was new enough: those without one belong to it.
	keeps bool
}

// write shows the lines of a page that are new enough, and counts them.
func (n *newer) write(page *supervisorv1.ReadLogsResponse) (shown int, err error) {
	w := bufio.NewWriter(n.to)
	if page.GetMissed() {
		fmt.Fprintln(w, "(lines are missing here: they came faster than they were read)")
	}
	for _, line := range page.GetLines() {
		text := string(line)
		if at, ok := lineTime(text); ok {
			n.keeps = !at.Before(n.than)
		}
		if n.keeps || n.than.IsZero() {
			shown++
			fmt.Fprintln(w, harmless(text))
		}
	}
	return shown, w.Flush()
}

// lineTime is when a line of either format was written; false if it does not say so.
func lineTime(line string) (time.Time, bool) {
	text, ok := strings.CutPrefix(line, "time=")
	if !ok {
		if text, ok = strings.CutPrefix(line, `{"time":"`); !ok {
			return time.Time{}, false
		}
	}
	if end := strings.IndexAny(text, ` "`); end >= 0 {
		text = text[:end]
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	return at, err == nil
}

// harmless is text without what would control a terminal: a service that an attacker has taken over controls its log.
func harmless(text string) string {
	return strings.Map(func(r rune) rune {
		if r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r)) {
			return unicode.ReplacementChar
		}
		return r
	}, text)
}
