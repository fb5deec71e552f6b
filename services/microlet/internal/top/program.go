package top

import (
	"context"
	"errors"
	"io"
	"time"

	tea "charm.land/bubbletea/v2"
)

// period is how often the node is asked.
const period = 2 * time.Second

// Run shows what ask answers, every 2 s, until the context ends or the operator ends it. in and out are a terminal.
func Run(ctx context.Context, in io.Reader, out io.Writer, ask func(context.Context) Node) error {
	p := tea.NewProgram(&program{ctx: ctx, ask: ask}, tea.WithContext(ctx), tea.WithInput(in), tea.WithOutput(out))
	_, err := p.Run()
	if errors.Is(err, tea.ErrInterrupted) || ctx.Err() != nil {
		return nil
	}
	return err
}

// program is the state of the screen.
type program struct {
	ctx context.Context //nolint:containedctx // a command of the program takes none, and asks for as long as it runs
	ask func(context.Context) Node

	screen  screen
	now     *Node
	before  *Node
	waiting bool // for an answer
}

var _ tea.Model = (*program)(nil)

// tick asks for the next look.
type tick struct{}

// Init begins with a look.
func (p *program) Init() tea.Cmd { return p.look() }

// look asks the node, beside the program, which goes on taking keys.
func (p *program) look() tea.Cmd {
	p.waiting = true
	return func() tea.Msg { return p.ask(p.ctx) }
}

// Update takes keys, sizes and answers.
func (p *program) Update(message tea.Msg) (tea.Model, tea.Cmd) {
	switch m := message.(type) {
	case tea.WindowSizeMsg:
		p.screen.width, p.screen.height = m.Width, m.Height
	case tea.KeyPressMsg:
		return p, p.key(m.String())
	case Node:
		p.before, p.now, p.waiting = p.now, &m, false
		return p, tea.Tick(period, func(time.Time) tea.Msg { return tick{} })
	case tick:
		if !p.waiting {
			return p, p.look()
		}
	}
	return p, nil
}

func (p *program) key(name string) tea.Cmd {
	pods := 0
	if p.now != nil {
		pods = len(p.now.Pods)
	}
	first := p.screen.firstPod
	switch name {
	case "q", "esc", "ctrl+c":
		return tea.Quit
	case "down", "j":
		first++
	case "up", "k":
		first--
	case "pgdown", "space":
		first += p.screen.height / 2
	case "pgup":
		first -= p.screen.height / 2
	case "home", "g":
		first = 0
	}
	p.screen.firstPod = max(0, min(first, pods-1))
	return nil
}

// View shows the newest answer.
func (p *program) View() tea.View {
	text := "asking the node agent…"
	if p.now != nil {
		text = p.screen.render(p.now, p.before)
	}
	view := tea.NewView(text)
	view.AltScreen = true
	return view
}
