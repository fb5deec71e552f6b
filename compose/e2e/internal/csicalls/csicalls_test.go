package csicalls

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// lines are calls of one volume: a method with a sign. "+" is its begin and its successful end, "(" its begin alone,
// ")" its end; "!" is its begin and an end that leaves open whether it was done, "x" one that says that it was not,
// and "gone" is the caller's end.
func lines(calls ...string) []Line {
	var all []Line
	under := map[string]int{}
	for i, c := range calls {
		method, sign, _ := strings.Cut(c, " ")
		if method == "start" {
			all = append(all, Line{})
			continue
		}
		l := Line{Call: i + 1, Method: method, Volume: "v", Number: i + 1, Target: "/t", Staging: "/s"}
		if method == Attach || method == Detach {
			l.Number = 0
		}
		if sign == "gone" {
			all = append(all, Line{Call: under[method], Method: method, Volume: "v", Gone: true})
			continue
		}
		if sign == ")" {
			l.Call = under[method]
		} else {
			under[method] = l.Call
			all = append(all, l)
		}
		if l.Code = map[string]string{"+": "OK", ")": "OK", "!": "Canceled", "x": "Internal"}[sign]; l.Code != "" {
			all = append(all, l)
		}
	}
	return all
}

func TestContract(t *testing.T) {
	whole := []string{Attach + " +", Stage + " +", Publish + " +", Unpublish + " +", Unstage + " +", Detach + " +"}
	for _, c := range []struct {
		calls    []string
		breaches string
		left     string
	}{
		{calls: whole},
		{calls: append(append([]string{}, whole...), whole...)},
		{calls: []string{Attach + " +", Stage + " !", Stage + " +"}, left: "staged: v"},
		{calls: []string{Attach + " +", Stage + " x", Detach + " +"}},
		{calls: []string{Attach + " +", Stage + " +", Stage + " x"}, left: "staged: v"},
		{calls: []string{Attach + " +", Stage + " !", Detach + " +"}, breaches: "it is staged", left: "staged: v"},
		{calls: []string{Stage + " +"}, breaches: "it is not attached", left: "staged: v"},
		{calls: []string{Attach + " +", Detach + " !", Stage + " x"}, breaches: "it is not attached"},
		{
			calls: []string{Attach + " +", Stage + " !", Publish + " x"}, breaches: "it is not staged",
			left: "staged: v",
		},
		{
			calls:    []string{Attach + " +", Stage + " +", Publish + " !", Unstage + " +"},
			breaches: "it is published at /t", left: "published: v at /t",
		},
		{
			calls:    []string{Attach + " +", Stage + " (", Publish + " x", Stage + " )"},
			breaches: "call 2, NodeStageVolume, is under way; it is not staged", left: "staged: v",
		},
		{
			calls: []string{Attach + " +", Stage + " (", Stage + " gone", Stage + " !", Stage + " +"}, left: "staged: v",
		},
		{calls: []string{Attach + " +", Stage + " (", "start", Stage + " +"}, left: "staged: v"},
		{calls: []string{Attach + " +", Stage + " (", Stats + " x", Stage + " )"}, left: "staged: v"},
		{calls: []string{Attach + " +", Stats + " (", Stage + " +", Stats + " )"}, left: "staged: v"},
	} {
		var breaches []string
		for _, b := range Breaches(lines(c.calls...)) {
			_, what, _ := strings.Cut(b, " of v: ")
			breaches = append(breaches, what)
		}
		if got := strings.Join(breaches, "; "); got != c.breaches {
			t.Errorf("%q: breaches %q, want %q", c.calls, got, c.breaches)
		}
		if got := strings.Join(Left(lines(c.calls...)), " "); got != c.left {
			t.Errorf("%q: left %q, want %q", c.calls, got, c.left)
		}
	}
}

func TestRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "calls")
	text := `{"time":"2026-01-02T03:04:05Z"}` + "\n" + `{"call":1,"method":"m","code":"OK"}` + "\n" + `{"call":2,"me`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := Read(path)
	if err != nil || len(got) != 2 || !got[1].OK() || got[0].Call != 0 {
		t.Errorf("%+v, %v", got, err)
	}
	if err := os.WriteFile(path, []byte("no JSON\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a broken file: %v", err)
	}
}

func TestWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rules")
	for want, rules := range map[string][]Rule{
		`[]`:                         nil,
		`[{"number":3,"hold":true}]`: {{Number: 3, Hold: true}},
	} {
		if err := Write(path, rules...); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("%s, %v, want %s", got, err, want)
		}
	}
}
