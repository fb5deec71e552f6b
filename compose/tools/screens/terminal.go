package main

import (
	"context"
	"errors"
	"fmt"
	"image/color"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	uv "github.com/charmbracelet/ultraviolet"
	"github.com/charmbracelet/x/vt"
	"github.com/creack/pty"
)

// endPatience is how long a command may take to end when its terminal hangs up.
const endPatience = 5 * time.Second

// terminal is the size of a terminal in characters.
type terminal struct{ columns, rows int }

// look runs a command on a terminal, and returns what is on the screen after a time, or when the command has ended by
// itself. Lines below the last one with text are left out.
func (t terminal) look(ctx context.Context, argv []string, after time.Duration) ([][]span, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGHUP) }
	cmd.WaitDelay = endPatience
	cmd.Env = append(os.Environ(), "TERM=xterm-256color", "COLORTERM=truecolor")
	file, err := pty.StartWithSize(cmd, &pty.Winsize{Cols: uint16(t.columns), Rows: uint16(t.rows)})
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", argv[0], err)
	}
	screen := vt.NewEmulator(t.columns, t.rows)
	var mu sync.Mutex // of the screen
	var copies sync.WaitGroup
	ended := make(chan struct{})
	copies.Go(func() { _, _ = io.Copy(file, screen) }) // what a terminal answers to questions about itself
	copies.Go(func() {
		defer close(ended)
		buffer := make([]byte, 32<<10)
		for {
			n, err := file.Read(buffer)
			mu.Lock()
			_, _ = screen.Write(buffer[:n])
			mu.Unlock()
			if err != nil {
				return // the command has closed its side
			}
		}
	})
	select {
	case <-ended:
	case <-time.After(after):
	case <-ctx.Done():
	}
	mu.Lock()
	lines := t.lines(screen)
	mu.Unlock()
	cancel()
	_ = cmd.Wait() // how it ends does not matter to the picture
	err = file.Close()
	if pipe, is := screen.InputPipe().(io.Closer); is { // Close of the screen races with Read
		err = errors.Join(err, pipe.Close())
	}
	copies.Wait()
	return lines, err
}

// lines are those of the screen, each as spans of one colour.
func (t terminal) lines(screen *vt.Emulator) [][]span {
	var lines [][]span
	last := 0
	for y := range t.rows {
		var line []span
		for x := range t.columns {
			cell := screen.CellAt(x, y)
			s := span{text: " ", color: plain}
			if cell != nil && cell.Width == 0 {
				continue // the second half of a wide character
			}
			if cell != nil && cell.Content != "" {
				s = span{text: cell.Content, color: foreground(&cell.Style), back: background(&cell.Style)}
			}
			if n := len(line); n > 0 && line[n-1].color == s.color && line[n-1].back == s.back {
				line[n-1].text += s.text
			} else {
				line = append(line, s)
			}
		}
		line = trim(line)
		if lines = append(lines, line); len(line) > 0 {
			last = len(lines)
		}
	}
	return lines[:last]
}

// trim drops the spaces at the end that have no colour behind them.
func trim(line []span) []span {
	for n := len(line); n > 0 && line[n-1].back == ""; n = len(line) {
		if line[n-1].text = strings.TrimRight(line[n-1].text, " "); line[n-1].text != "" {
			break
		}
		line = line[:n-1]
	}
	return line
}

func foreground(s *uv.Style) string {
	switch {
	case s.Attrs&uv.AttrReverse != 0:
		return window
	case s.Fg != nil:
		return hex(s.Fg)
	case s.Attrs&uv.AttrFaint != 0:
		return dim
	case s.Attrs&uv.AttrBold != 0:
		return bold
	}
	return plain
}

func background(s *uv.Style) string {
	switch {
	case s.Attrs&uv.AttrReverse != 0:
		return plain
	case s.Bg != nil:
		return hex(s.Bg)
	}
	return ""
}

func hex(c color.Color) string {
	r, g, b, _ := c.RGBA()
	return fmt.Sprintf("#%02x%02x%02x", r>>8, g>>8, b>>8)
}
