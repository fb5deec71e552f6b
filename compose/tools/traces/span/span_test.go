package span

import (
	"strings"
	"testing"
)

func TestReadLeavesOutWhatIsBeingWritten(t *testing.T) {
	got, err := Read(strings.NewReader("{\"name\":\"a\"}\n{\"name\":\"b\"}\n{\"na"))
	if err != nil || len(got) != 2 || got[1].Name != "b" {
		t.Errorf("read %+v, %v", got, err)
	}
	if _, err := Read(strings.NewReader("{}\n{]\n")); err == nil || !strings.Contains(err.Error(), "span 2") {
		t.Errorf("a line that is none: %v", err)
	}
}
