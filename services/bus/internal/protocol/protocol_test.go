package protocol

import (
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
)

const connect = `CONNECT {"verbose":false,"nkey":"UA","sig":"x"}` + "\r\n"

// anyPace keeps nothing back.
func anyPace(int) error { return nil }

func TestCopy(t *testing.T) {
	refused := errors.New("not yours")
	for name, test := range map[string]struct {
		in   string
		out  string // what the server gets; "same" is all of it
		want string // part of the error; empty is io.EOF
	}{
		"a conversation": {connect +
			"PING\r\nSUB a.> 1\r\nPUB a 5\r\nhello\r\nHPUB a r 4 9\r\nNATShello\r\nPONG\r\nUNSUB 1\r\n", "same", ""},
		"an empty message":           {connect + "PUB a 0\r\n\r\nPING\r\n", "same", ""},
		"CONNECT within a message":   {connect + "PUB a 49\r\n" + connect + "\r\nPING\r\n", "same", ""},
		"another's key":              {`CONNECT {"nkey":"UB"}` + "\r\nPING\r\n", "", "not yours"},
		"the last of two keys":       {`CONNECT {"nkey":"UA","NKEY":"UB"}` + "\r\n", "", "not yours"},
		"no CONNECT":                 {"PING\r\n" + connect, "", "want CONNECT"},
		"no JSON":                    {"CONNECT nkey\r\n", "", "CONNECT:"},
		"a second CONNECT":           {connect + "PING\r\n" + connect, connect + "PING\r\n", "second CONNECT"},
		"a second connect":           {connect + "connect {}\r\n", connect, "unknown operation"},
		"CONNECT behind spaces":      {connect + " " + connect, connect, "unknown operation"},
		"CONNECT behind a tab":       {connect + "\t" + connect, connect, "control characters"},
		"a line feed alone":          {connect + "PING\n" + connect, connect, "CR LF"},
		"a return within":            {connect + "SUB a\r1\r\n", connect, "CR LF"},
		"a size that is none":        {connect + "PUB a -5\r\n", connect, "size"},
		"a size with a sign":         {connect + "PUB a +5\r\nhello\r\n", connect, "size"},
		"a size that runs over":      {connect + "PUB a 18446744073709551617\r\n", connect, "size"},
		"two spaces":                 {connect + "PUB a  5\r\nhello\r\n", connect, "empty argument"},
		"too many arguments":         {connect + "PUB a b c 5\r\n", connect, "arguments"},
		"headers without their size": {connect + "HPUB a 5\r\nhello\r\n", connect, "arguments"},
		"a line without an end":      {connect + "SUB " + strings.Repeat("a", bufferSize), connect, "more than 4096"},
		"an end within a message":    {connect + "PUB a 5\r\nhe", connect + "PUB a 5\r\nhe", ""},
	} {
		t.Run(name, func(t *testing.T) {
			for _, from := range []io.Reader{strings.NewReader(test.in), iotest.OneByteReader(strings.NewReader(test.in))} {
				var out strings.Builder
				err := Copy(&out, from, func(nkey string) error {
					if nkey != "UA" {
						return refused
					}
					return nil
				}, anyPace)
				want := test.out
				if want == "same" {
					want = test.in
				}
				if !strings.HasPrefix(want, out.String()) || test.out == "same" && out.String() != want {
					t.Errorf("the server gets %q, want %q", out.String(), want)
				}
				if test.want == "" && !errors.Is(err, io.EOF) || test.want != "" && !strings.Contains(err.Error(), test.want) {
					t.Errorf("it ends with %v, want %q", err, test.want)
				}
			}
		})
	}
}

// Whatever a client says, the server gets a part of it from its start, and never a second CONNECT as an operation.
func FuzzCopy(f *testing.F) {
	f.Add("PING\r\nPUB a 5\r\nhello\r\n")
	f.Add("HPUB a 4 9\r\nNATShello\r\n" + connect)
	f.Fuzz(func(t *testing.T, in string) {
		var out strings.Builder
		if err := Copy(&out, strings.NewReader(connect+in), func(string) error { return nil }, anyPace); err == nil {
			t.Fatal("it ended without an error")
		}
		if !strings.HasPrefix(connect+in, out.String()) {
			t.Fatalf("the server gets %q of %q", out.String(), in)
		}
		if n := connects(t, out.String()); n > 1 {
			t.Fatalf("the server gets %d CONNECTs: %q", n, out.String())
		}
	})
}

// connects counts the CONNECT operations as the server reads them: in any case, with spaces and tabs between words.
func connects(t *testing.T, said string) int {
	t.Helper()
	n := 0
	for said != "" {
		line, rest, whole := strings.Cut(said, "\n")
		words := strings.FieldsFunc(line, func(r rune) bool { return r == ' ' || r == '\t' || r == '\r' })
		said = rest
		if !whole || len(words) == 0 {
			continue
		}
		switch strings.ToUpper(words[0]) {
		case "CONNECT":
			n++
		case "PUB", "HPUB":
			size, err := strconv.Atoi(words[len(words)-1])
			if err != nil {
				t.Fatalf("the server gets a size that it cannot read: %q", line)
			}
			said = said[min(size+len("\r\n"), len(said)):]
		}
	}
	return n
}
