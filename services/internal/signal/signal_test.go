package signal

import "testing"

func TestSignalsAreOneUntilItIsReceived(t *testing.T) {
	s := New()
	isSet := func() bool {
		select {
		case <-s:
			return true
		default:
			return false
		}
	}
	if isSet() {
		t.Error("a new signal is set")
	}
	for range 2 {
		for range 3 {
			s.Set()
		}
		if !isSet() || isSet() {
			t.Error("three signals are not one")
		}
	}
	s.Set()
	for range 2 {
		s.Clear()
	}
	if isSet() {
		t.Error("a cleared signal is set")
	}
}
