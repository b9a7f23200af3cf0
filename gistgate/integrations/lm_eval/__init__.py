"""GistGate as a model of EleutherAI's lm-evaluation-harness (the extra `pipeline` installs it).

    python -m gistgate.integrations.lm_eval run --model gistgate \\
        --model_args pretrained=TARGET,draft=DRAFT,rule=fly,theta=0.9,block=8 --tasks gsm8k --include_path data/tasks
"""
