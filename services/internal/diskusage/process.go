package diskusage

import (
	"encoding/json"

	"github.com/microlet/microlet/services/internal/childprocess"
)

// process is a child as the Measurer sees it.
type process interface {
	// ask sends a request. It does not wait for the answer, nor for the child to read: the socket has room for the one
	// request that may be under way.
	ask(request) error
	// kill ends the child as soon as the kernel lets it end.
	kill()
}

// launcher starts a child. The launcher reports each of its answers, and at last nil when the child has ended.
type launcher func(report func(*answer)) (process, error)

// child is a process of the operating system.
type child struct{ *childprocess.Process }

// launch starts this binary as a child.
func launch(report func(*answer)) (process, error) {
	p, err := program.Start()
	if err != nil {
		return nil, err
	}
	c := &child{p}
	// This ends with the child. Of an abandoned one that is when the kernel lets go of it.
	go func() {
		for answers := lines(p.Conn); answers.Scan(); {
			a, err := parseAnswer(answers.Bytes())
			if err != nil {
				break
			}
			report(&a)
		}
		p.Kill()
		<-p.Done()
		_ = p.Conn.Close() // nothing is to be lost on it any more
		report(nil)
	}()
	return c, nil
}

func (c *child) ask(q request) error {
	line, err := json.Marshal(q)
	if err != nil {
		return err
	}
	_, err = c.Conn.Write(append(line, '\n'))
	return err
}

func (c *child) kill() { c.Kill() }
