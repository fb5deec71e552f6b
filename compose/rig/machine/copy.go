package machine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
)

func (m *machine) Run(ctx context.Context, c Command) (Result, error) {
	r, err := m.shell.run(ctx, c)
	if err != nil && ctx.Err() == nil && !m.Running() {
		err = fmt.Errorf("%w (%w); the end of its console:\n%s", ErrOff, err, m.Console(20))
	}
	if err != nil {
		return r, fmt.Errorf("run %s in machine %s: %w", path.Base(c.Args[0]), m.r.Name, err)
	}
	return r, nil
}

func (m *machine) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	client, err := m.shell.open(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect to %s in machine %s: %w", address, m.r.Name, err)
	}
	conn, err := client.DialContext(ctx, network, address)
	if err != nil {
		return nil, fmt.Errorf("connect to %s in machine %s: %w", address, m.r.Name, err)
	}
	return conn, nil
}

// must runs a command that has to exit with 0.
func (m *machine) must(ctx context.Context, c Command) (Result, error) {
	r, err := m.Run(ctx, c)
	if err == nil && r.Code != 0 {
		err = fmt.Errorf("%s has ended with %d: %s", strings.Join(c.Args, " "), r.Code, bytes.TrimSpace(r.Stderr))
	}
	return r, err
}

func (m *machine) Write(ctx context.Context, to string, text []byte, mode fs.FileMode) error {
	_, err := m.must(ctx, Command{Args: install(to, mode), Input: bytes.NewReader(text)})
	if err != nil {
		return fmt.Errorf("write %s into machine %s: %w", to, m.r.Name, err)
	}
	return nil
}

// install writes a file from the standard input. It writes beside its place first, so that no program reads or runs
// half of it. As a package manager does, it syncs the file, so that a power cut leaves it there.
func install(to string, mode fs.FileMode) []string {
	const script = `mkdir -p "${1%/*}/" && cat > "$1.half" && chmod "$2" "$1.half" && mv -T "$1.half" "$1" && sync -f "$1"`
	return []string{"sh", "-c", script, "install", to, fmt.Sprintf("%o", mode.Perm())}
}

func (m *machine) CopyIn(ctx context.Context, from, to string) error {
	if err := m.copyIn(ctx, from, to); err != nil {
		return fmt.Errorf("copy %s into machine %s: %w", from, m.r.Name, err)
	}
	return nil
}

func (m *machine) copyIn(ctx context.Context, from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		f, err := os.Open(from)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		_, err = m.must(ctx, Command{Args: install(to, info.Mode()), Input: f})
		return err
	}
	pack := exec.CommandContext(ctx, "tar", "-C", from, "-cf", "-", ".")
	var said bytes.Buffer
	pack.Stderr = &said
	out, err := pack.StdoutPipe()
	if err != nil {
		return err
	}
	if err := pack.Start(); err != nil {
		return err
	}
	_, err = m.must(ctx,
		Command{
			Args:  []string{"sh", "-c", `mkdir -p "$1" && tar -C "$1" -xf - && sync -f "$1"`, "unpack", to},
			Input: out,
		})
	_ = out.Close() // tar ends if the rest is not read
	if packErr := pack.Wait(); err == nil && packErr != nil {
		err = fmt.Errorf("%w: %s", packErr, said.String())
	}
	return err
}

func (m *machine) CopyOut(ctx context.Context, from, to string) error {
	if err := m.copyOut(ctx, from, to); err != nil {
		return fmt.Errorf("copy %s out of machine %s: %w", from, m.r.Name, err)
	}
	return nil
}

func (m *machine) copyOut(ctx context.Context, from, to string) error {
	r, err := m.must(ctx, Command{Args: []string{"stat", "-L", "-c", "%a %F", from}})
	if err != nil {
		return err
	}
	var mode fs.FileMode
	var kind string
	if _, err := fmt.Sscanf(string(r.Stdout), "%o %s", &mode, &kind); err != nil {
		return fmt.Errorf("understand %q: %w", r.Stdout, err)
	}
	if kind == "directory" {
		if err := os.MkdirAll(to, 0o755); err != nil {
			return err
		}
		return m.unpack(ctx, from, to)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(to+".half", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = m.must(ctx, Command{Args: []string{"cat", from}, Output: f})
	if err := errors.Join(err, f.Chmod(mode.Perm()), f.Close()); err != nil {
		return errors.Join(err, os.Remove(to+".half"))
	}
	return os.Rename(to+".half", to)
}

// unpack copies what is in a folder of the machine's.
func (m *machine) unpack(ctx context.Context, from, to string) error {
	cmd := exec.CommandContext(ctx, "tar", "-C", to, "-xf", "-")
	var said bytes.Buffer
	cmd.Stderr = &said
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	_, err = m.must(ctx, Command{Args: []string{"tar", "-C", from, "-cf", "-", "."}, Output: in})
	_ = in.Close()
	if tarErr := cmd.Wait(); err == nil && tarErr != nil {
		err = fmt.Errorf("%w: %s", tarErr, said.String())
	}
	return err
}
