package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/microlet/microlet/services/internal/run"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/internal/unreadable"
	"github.com/microlet/microlet/services/microlet/internal/debugbundle"
)

func newDebug() *cobra.Command {
	cmd := &cobra.Command{Use: "debug", Short: "Collect what a report about the node agent needs"}
	holdCommands(cmd)
	cmd.AddCommand(newBundle())
	return cmd
}

func newBundle() *cobra.Command {
	cfg := service.DefaultConfig()
	output := ""
	cmd := &cobra.Command{
		Use:   "bundle",
		Short: "Write status, configuration, logs, metrics and profiles into one archive, without secrets",
		Long: "Write status, versions, pods, configuration, the newest log lines, the journal of the agent's units, the\n" +
			"kernel's log, metrics, goroutine profiles and the state of this machine into one archive. Passwords,\n" +
			"tokens and keys are replaced; names of pods, images and hosts are not. What cannot be had is left out,\n" +
			"and missing.txt in the archive says why. Only root may do this.\n" +
			"It ends with 3 if the archive lacks the status or the pods, as when the agent does not run.",
		Args: service.NoArguments,
	}
	addRuntimeDir(cmd, &cfg)
	cmd.Flags().StringVarP(&output, "output", "o", output,
		`file to write, which must not exist; "-" is the standard output (default "microlet-debug-TIME.tar.gz")`)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		now := time.Now()
		if output == "" {
			output = "microlet-debug-" + now.UTC().Format("20060102T150405Z") + ".tar.gz"
		}
		if _, err := os.Stat(cfg.RuntimeDir); err != nil {
			return fmt.Errorf("runtime folder %s: %w", cfg.RuntimeDir, unread(err))
		}
		return writeBundle(run.Signals(cmd.Context()), cmd, &cfg, output, now)
	}
	return cmd
}

// unread says in words why a file cannot be read or written.
func unread(err error) error {
	if errors.Is(err, fs.ErrExist) {
		return errors.New("it exists: name another one, or remove it")
	}
	fault, remedy := unreadable.Why(err)
	return fmt.Errorf("%s: %s", fault, remedy)
}

func writeBundle(ctx context.Context, cmd *cobra.Command, cfg *service.Config, output string, now time.Time) error {
	sources := bundleSources(ctx, cfg)
	if output == "-" {
		missing, err := debugbundle.Write(ctx, cmd.OutOrStdout(), sources, now)
		return errors.Join(err, lacks(missing))
	}
	f, err := os.OpenFile(output, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("output %s: %w", output, unread(err))
	}
	missing, err := debugbundle.Write(ctx, f, sources, now)
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", output, err), os.Remove(output))
	}
	w := cmd.OutOrStdout()
	fmt.Fprintf(w, "%s has %d files. Look through it before you pass it on.\n", output, len(sources)-len(missing))
	if len(missing) > 0 {
		fmt.Fprintf(w, "Left out are %s; missing.txt says why.\n", strings.Join(missing, ", "))
	}
	return lacks(missing)
}

// What a report cannot do without.
const (
	statusFile = "status.json"
	podsFile   = "pods.json"
)

// lacks is the error of an archive that has been written and does not say what the agent does.
func lacks(missing []string) error {
	var lost []string
	for _, name := range []string{statusFile, podsFile} {
		if slices.Contains(missing, name) {
			lost = append(lost, name)
		}
	}
	if len(lost) == 0 {
		return nil
	}
	return service.ExitError{Code: notReady, Err: fmt.Errorf(
		"the archive lacks %s: see missing.txt in it, start the agent if it does not run, and collect again",
		strings.Join(lost, " and "))}
}

// bundleSources are the files of the archive. Services that are not there have none.
func bundleSources(ctx context.Context, cfg *service.Config) []debugbundle.Source {
	sources := []debugbundle.Source{
		{Name: "version.json", Collect: asJSON(func(context.Context) (any, error) { return thisVersion(), nil })},
		{Name: statusFile, Collect: asJSON(func(ctx context.Context) (any, error) {
			return askStatus(ctx, cfg)
		})},
		{Name: podsFile, Collect: asJSON(func(ctx context.Context) (any, error) { return listPods(ctx, cfg, "") })},
		{Name: "files.txt", Collect: func(context.Context) ([]byte, error) { return listFiles(cfg.RuntimeDir) }},
	}
	sources = append(sources, machineSources()...)
	sources = append(sources, systemLogs()...)
	sources = append(sources, configSources(cfg)...)
	return append(sources, processSources(ctx, cfg)...)
}

func asJSON(ask func(context.Context) (any, error)) func(context.Context) ([]byte, error) {
	return func(ctx context.Context) ([]byte, error) {
		answer, err := ask(ctx)
		if err != nil {
			return nil, err
		}
		var b bytes.Buffer
		err = encode(&b, answer)
		return b.Bytes(), err
	}
}

// maxListed bounds the list of files: a service may fill its folder.
const maxListed = 10000

// listFiles lists names, modes, owners and sizes, among them those of the bus's store, and reads none of the files.
func listFiles(dir string) ([]byte, error) {
	var b bytes.Buffer
	listed := 0
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			fmt.Fprintf(&b, "%s: %v\n", path, err)
			return nil
		}
		if listed++; listed > maxListed {
			fmt.Fprintf(&b, "(more than %d files)\n", maxListed)
			return filepath.SkipAll
		}
		info, err := entry.Info()
		if err != nil {
			fmt.Fprintf(&b, "%s: %v\n", path, err)
			return nil
		}
		uid, gid := owner(info)
		fmt.Fprintf(&b, "%s %6d %6d %10d %s %q\n", info.Mode(), uid, gid, info.Size(),
			info.ModTime().UTC().Format(time.RFC3339), path)
		return nil
	})
	return b.Bytes(), err
}

// readLimited reads what is at most as long as the archive keeps of it.
func readLimited(r io.Reader) ([]byte, error) { return io.ReadAll(io.LimitReader(r, 4<<20)) }
