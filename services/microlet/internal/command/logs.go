package command

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	supervisorv1 "github.com/microlet/microlet/proto/microlet/supervisor/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/run"
	"github.com/microlet/microlet/services/internal/service"
)

func newLogs() *cobra.Command {
	cfg := service.DefaultConfig()
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
	cmd.ValidArgsFunction = completeServices
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if request.GetTail() < -1 {
			return fmt.Errorf("tail is %d: give a number of lines, or -1 for all", request.GetTail())
		}
		if len(args) > 0 {
			request.Process = args[0]
		}
		lines, err := readLogs(run.Signals(cmd.Context()), cmd.OutOrStdout(), cfg.Socket(role.Up), request)
		if err == nil && lines == 0 && request.GetWord() != "" && request.GetTail() != 0 {
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
func readLogs(ctx context.Context, to io.Writer, socket string, request *supervisorv1.ReadLogsRequest) (int, error) {
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
		lines += len(page.GetLines())
		if err := writeLogs(to, page); err != nil {
			return lines, err
		}
	}
}

func writeLogs(to io.Writer, page *supervisorv1.ReadLogsResponse) error {
	w := bufio.NewWriter(to)
	if page.GetMissed() {
		fmt.Fprintln(w, "(lines are missing here: they came faster than they were read)")
	}
	for _, line := range page.GetLines() {
		fmt.Fprintln(w, harmless(string(line)))
	}
	return w.Flush()
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
